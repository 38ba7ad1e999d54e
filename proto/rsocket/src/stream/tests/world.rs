//! Two streams and a wire between them that keeps its order and nothing else.

use super::super::*;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

pub(super) const RING: Region = Region {
    address: 0x7f00_0001_0000,
    key: 11,
};
pub(super) const BLOCK: Region = Region {
    address: 0x7f00_9000_0000,
    key: 22,
};
pub(super) const USER: Region = Region {
    address: 0x7f00_a000_0000,
    key: 33,
};
/// Bytes of the memory offered by riomap.
pub(super) const USER_LEN: usize = 4096;

/// One process: a stream and its memory.
pub(super) struct End {
    pub(super) stream: Stream,
    pub(super) send_ring: Vec<u8>,
    pub(super) ring: Vec<u8>,
    pub(super) block: Vec<u8>,
    pub(super) user: Vec<u8>,
    /// Receives posted and not used.
    pub(super) receives: u32,
    /// Posted, in order.
    pub(super) wire: VecDeque<(Write, Vec<u8>)>,
    /// Completions of receives and of sends, not polled yet.
    pub(super) arrived: VecDeque<Received>,
    pub(super) completed: VecDeque<WorkId>,
    /// Every immediate that was posted.
    pub(super) said: Vec<Option<u32>>,
}

impl End {
    pub(super) fn new(stream: Stream) -> Self {
        let c = *stream.config();
        let mut end = Self {
            stream,
            send_ring: vec![0; c.send_ring as usize],
            ring: vec![0xaa; c.receive_ring as usize],
            block: vec![0; c.block_len()],
            user: vec![0; USER_LEN],
            receives: 0,
            wire: VecDeque::new(),
            arrived: VecDeque::new(),
            completed: VecDeque::new(),
            said: Vec::new(),
        };
        end.work();
        end
    }

    /// Posts what the stream wants posted.
    pub(super) fn work(&mut self) {
        while let Some(work) = self.stream.poll_work() {
            match work {
                Work::Receives(n) => self.receives += n,
                Work::Write(write) => self.post(write, &[]),
            }
        }
        let c = self.stream.config();
        assert!(self.stream.in_flight() <= u32::from(c.send_queue));
        assert!(self.receives <= u32::from(c.receive_queue));
    }

    fn post(&mut self, write: Write, caller: &[u8]) {
        let len = write.len as usize;
        let bytes = match write.source {
            Source::Nothing => Vec::new(),
            Source::Caller => caller[..len].to_vec(),
            Source::Entry(bytes) => bytes[..len].to_vec(),
            Source::Ring(spans) => {
                let mut from = &caller[..len];
                for span in spans {
                    let (here, rest) = from.split_at(span.len as usize);
                    let at = span.at as usize;
                    self.send_ring[at..at + here.len()].copy_from_slice(here);
                    from = rest;
                }
                assert!(from.is_empty(), "the spans hold the whole message");
                caller[..len].to_vec()
            }
        };
        assert_eq!(bytes.len(), len);
        self.said.push(write.immediate);
        self.wire.push_back((write, bytes));
    }

    /// As rsend without blocking: bytes taken.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<usize, Stopped> {
        self.plan(bytes, |stream, _, left| stream.send(left))
    }

    /// As riowrite without blocking.
    pub(super) fn send_direct(&mut self, offset: u64, bytes: &[u8]) -> Result<usize, Stopped> {
        self.plan(bytes, |stream, done, left| {
            stream.send_direct(offset + done, left)
        })
    }

    fn plan(
        &mut self,
        bytes: &[u8],
        mut next: impl FnMut(&mut Stream, u64, u32) -> Result<Planned, Stopped>,
    ) -> Result<usize, Stopped> {
        let mut done = 0;
        while done < bytes.len() {
            let left = (bytes.len() - done) as u32;
            match next(&mut self.stream, done as u64, left) {
                Ok(planned) => {
                    self.post(planned.write, &bytes[done..]);
                    done += planned.taken as usize;
                }
                Err(_) if done != 0 => break,
                Err(stopped) => return Err(stopped),
            }
        }
        self.work();
        Ok(done)
    }

    /// As rrecv without blocking.
    pub(super) fn read(&mut self, wanted: usize) -> Result<Vec<u8>, Stopped> {
        let spans = self.stream.peek(wanted as u32)?;
        let mut out = Vec::new();
        for span in spans {
            let at = span.at as usize;
            out.extend_from_slice(&self.ring[at..at + span.len as usize]);
        }
        self.stream.consume(out.len() as u32);
        self.work();
        Ok(out)
    }

    pub(super) fn poll_arrived(&mut self) -> bool {
        let Some(received) = self.arrived.pop_front() else {
            return false;
        };
        self.stream.on_received(received, self.block.as_slice());
        self.work();
        true
    }

    pub(super) fn poll_completed(&mut self) -> bool {
        let Some(id) = self.completed.pop_front() else {
            return false;
        };
        self.stream.on_sent(id, true);
        self.work();
        true
    }

    pub(super) fn shutdown(&mut self, how: Event) {
        self.stream.shutdown(how);
        self.work();
    }

    /// The NIC places bytes: only where a key of ours and its range allow.
    fn place(&mut self, write: &Write, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (region, memory) = match write.remote.key {
            11 => (RING, &mut self.ring),
            22 => (BLOCK, &mut self.block),
            33 => (USER, &mut self.user),
            key => panic!("no such key: {key}"),
        };
        let at = usize::try_from(write.remote.address - region.address).unwrap();
        memory[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Both ends, connected.
pub(super) struct World {
    pub(super) ends: [End; 2],
}

impl World {
    pub(super) fn new(active: Config, passive: Config) -> Self {
        let local = Local {
            ring: RING,
            block: BLOCK,
        };
        let mut a = End::new(Stream::connecting(active, local));
        let mut b = End::new(Stream::accepting(passive, local));
        let data = |e: &End| ConnectData::parse(&e.stream.connect_data().emit()).unwrap();
        let (of_a, of_b) = (data(&a), data(&b));
        a.stream.established(&of_b);
        b.stream.established(&of_a);
        a.work();
        b.work();
        Self { ends: [a, b] }
    }

    /// The first message on the wire of `from` arrives, unless its receiver is not ready.
    pub(super) fn deliver(&mut self, from: usize) -> bool {
        let [a, b] = &mut self.ends;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        let takes_receive = from
            .wire
            .front()
            .is_some_and(|(w, _)| w.immediate.is_some());
        if takes_receive && to.receives == 0 {
            return false;
        }
        let Some((write, bytes)) = from.wire.pop_front() else {
            return false;
        };
        to.place(&write, &bytes);
        if let Some(immediate) = write.immediate {
            to.receives -= 1;
            to.arrived.push_back(Received {
                immediate,
                len: write.len,
            });
        }
        from.completed.push_back(write.id);
        true
    }

    /// Everything on its way arrives and is polled.
    pub(super) fn settle(&mut self) {
        loop {
            let mut moved = false;
            for i in 0..2 {
                moved |= self.deliver(i);
                moved |= self.ends[i].poll_arrived();
                moved |= self.ends[i].poll_completed();
            }
            if !moved {
                return;
            }
        }
    }
}
