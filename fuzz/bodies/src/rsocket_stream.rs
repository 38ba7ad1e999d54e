//! A stream socket between a program and a peer that says anything: nothing panics, rings and
//! queues keep their bounds, bytes go only where the peer offered memory. And private data and the
//! headers of datagrams: refused, or the same again.

use std::collections::VecDeque;

use rocebud_objects::Instant;
use rocebud_rsocket::datagram::{UdHeader, UdpHeader};
use rocebud_rsocket::{
    Config, ConnectData, Event, Local, OFFSET_IS_ADDRESS, Planned, Received, Region, Source, State,
    Stream, Work, WorkId, Write,
};

use crate::input::Input;

/// See the module.
pub fn run(data: &[u8]) {
    codecs(data);
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
        world.check();
    }
}

fn codecs(data: &[u8]) {
    if let Ok(offer) = ConnectData::parse(data) {
        assert_eq!(ConnectData::parse(&offer.emit()), Ok(offer));
    }
    for v6 in [false, true] {
        if let Some((header, rest)) = UdHeader::parse(data, v6) {
            let again = [header.emit().as_ref(), rest].concat();
            assert_eq!(again, data);
        }
        if let Some((header, _)) = UdpHeader::parse(data, v6) {
            let again = header.emit();
            let read = UdpHeader::parse(again.as_ref(), v6);
            assert_eq!(read.map(|(h, _)| h), Some(header));
        }
    }
}

const LOCAL: Local = Local {
    ring: Region {
        address: 0x10_0000,
        key: 1,
    },
    block: Region {
        address: 0x20_0000,
        key: 2,
    },
};

/// Our end, and what it has posted.
struct World {
    stream: Stream,
    block: Vec<u8>,
    posted: VecDeque<WorkId>,
    /// Bytes of the send ring in use, by the spans.
    receives: u32,
    read: u64,
    told: u64,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let config = Config {
            send_queue: input.half() % 64,
            receive_queue: input.half() % 64,
            send_ring: input.word() % 20_000,
            receive_ring: input.word() % 20_000,
            iomap_entries: input.half() % 600,
            inline: input.half() % 300,
            ..Config::default()
        };
        let offer: Vec<u8> = (0..40).map(|_| input.byte()).collect();
        let mut stream = match input.rarely(128) {
            true => Stream::connecting(config, LOCAL),
            false => Stream::accepting(config, LOCAL),
        };
        // an offer that no peer would make is refused before it comes here
        let offer = ConnectData::parse(&offer).unwrap_or_else(|_| stream.connect_data());
        stream.established(&offer);
        let block = vec![0; stream.config().block_len()];
        Self {
            stream,
            block,
            posted: VecDeque::new(),
            receives: 0,
            read: 0,
            told: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(11) {
            0 | 1 => self.hear(input),
            2 => self.write_block(input),
            3 => {
                let wanted = input.word() % 70_000;
                let planned = self.stream.send(wanted);
                self.planned(planned.ok(), wanted);
            }
            4 => {
                let (offset, wanted) = (u64::from(input.word()), input.word());
                let planned = self.stream.send_direct(offset, wanted);
                self.planned(planned.ok(), wanted);
            }
            5 => self.complete(input),
            6 => self.read(input),
            7 => self.map(input),
            8 => self.end(input),
            9 => self.keepalive(input),
            _ => self.work(),
        }
    }

    /// The peer says something.
    fn hear(&mut self, input: &mut Input<'_>) {
        let kind = u32::from(input.byte()) % 8;
        let data = match input.rarely(64) {
            true => input.word() >> 3,
            false => u32::from(input.half()) % 5000,
        };
        let len = input.pick(&[0, 16, 24, 7]);
        let received = Received {
            immediate: kind << 29 | data,
            len,
        };
        if kind == 0 && self.stream.state() != State::Failed {
            self.told += u64::from(data);
        }
        self.receives = self.receives.saturating_sub(1);
        self.stream.on_received(received, self.block.as_slice());
        self.work();
    }

    fn write_block(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.half()) % self.block.len();
        for _ in 0..input.below(25) {
            let byte = input.byte();
            if let Some(place) = self.block.get_mut(at) {
                *place = byte;
            }
        }
    }

    fn planned(&mut self, planned: Option<Planned>, wanted: u32) {
        if let Some(Planned { taken, write }) = planned {
            assert!(taken <= wanted);
            assert!(taken == write.len || taken == 0);
            self.post(write);
        }
        self.work();
    }

    fn post(&mut self, write: Write) {
        let config = *self.stream.config();
        match write.source {
            Source::Nothing => assert_eq!(write.len, 0),
            Source::Caller => assert!(write.len <= u32::from(config.inline)),
            Source::Entry(bytes) => assert!(write.len as usize <= bytes.len()),
            Source::Ring(spans) => {
                let all: u32 = spans.iter().map(|s| s.len).sum();
                assert_eq!(all, write.len, "the spans hold the whole message");
                assert!(spans.iter().all(|s| s.at + s.len <= config.send_ring));
            }
        }
        self.posted.push_back(write.id);
    }

    fn work(&mut self) {
        while let Some(work) = self.stream.poll_work() {
            match work {
                Work::Receives(n) => self.receives += n,
                Work::Write(write) => self.post(write),
            }
        }
    }

    fn complete(&mut self, input: &mut Input<'_>) {
        for _ in 0..input.below(9) {
            let Some(id) = self.posted.pop_front() else {
                break;
            };
            self.stream.on_sent(id, !input.rarely(2));
        }
        self.work();
    }

    fn read(&mut self, input: &mut Input<'_>) {
        let wanted = u32::from(input.half());
        if let Ok(spans) = self.stream.peek(wanted) {
            let ring = self.stream.config().receive_ring;
            let all: u32 = spans.iter().map(|s| s.len).sum();
            assert!(all <= wanted && all <= self.stream.unread());
            assert!(spans.iter().all(|s| s.at + s.len <= ring));
            let taken = input.word() % (all + 1);
            self.stream.consume(taken);
            self.read += u64::from(taken);
        }
        self.work();
    }

    fn map(&mut self, input: &mut Input<'_>) {
        let memory = Region {
            address: 0x30_0000 + u64::from(input.half()),
            key: 3,
        };
        let len = u32::from(input.byte());
        let offset = match input.rarely(64) {
            true => OFFSET_IS_ADDRESS,
            false => i64::from(input.word().cast_signed()),
        };
        if let Ok(at) = self.stream.map(memory, len, offset)
            && input.rarely(100)
        {
            assert!(self.stream.unmap(at, len).is_ok());
        }
        self.work();
    }

    fn end(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            250 => self.stream.connection_lost(),
            251 => self.stream.shutdown(Event::ShutdownBoth),
            252 => self.stream.shutdown(Event::ShutdownWrite),
            253 => self.stream.shutdown(Event::ShutdownRead),
            n => self.stream.shutdown(Event::ALL[usize::from(n) % 5]),
        }
        self.work();
    }

    fn keepalive(&mut self, input: &mut Input<'_>) {
        let now = Instant(u64::from(input.word()) << 20);
        match input.below(2) {
            0 => self.stream.set_keepalive(now, input.word()),
            _ => self.stream.on_timeout(now),
        }
        self.work();
    }

    fn check(&mut self) {
        let config = *self.stream.config();
        assert!(self.stream.unread() <= config.receive_ring);
        assert!(self.read + u64::from(self.stream.unread()) <= self.told);
        assert!(self.stream.in_flight() <= u32::from(config.send_queue));
        assert_eq!(self.stream.in_flight() as usize, self.posted.len());
        if self.stream.state().is_connected() {
            assert!(!self.stream.is_quiet() || self.posted.is_empty());
        }
        let _ = (self.stream.ready(), self.stream.poll_timeout());
    }
}
