//! Measures the link between two processes, on two hosts or in two namespaces.
//!
//! ```text
//! peer:  udp_batches answer  OWN_ADDRESS PEER_ADDRESS
//! here:  udp_batches stream  OWN_ADDRESS PEER_ADDRESS [SECONDS [SEGMENT [SEGMENTS]]]
//!        udp_batches pingpong OWN_ADDRESS PEER_ADDRESS [ROUNDS [BYTES]]
//! ```
//!
//! `stream` keeps a few batches on the way, each acknowledged by a small packet, as RC does;
//! YIELD_AFTER in the environment: empty looks before the processor is given away (0 = never).
//! `pingpong` sends one small packet to and fro, both ends spinning. The peer ends with the first.

use rocebud_nic::udp::{ROCE_PORT, Rings, SlotSockets, UdpLink, free_send_socket, receive_socket};
use rocebud_nic::{PacketIo, TxBatch};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Batches on the way: 120 packets of a window of 128.
const WINDOW: usize = 8;

/// First byte of each payload: what the peer is to do with it.
const ACKNOWLEDGE: u8 = b'a';
const ECHO: u8 = b'e';
const QUIT: u8 = b'q';

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let address = |i: usize| words.get(i).and_then(|w| w.parse::<IpAddr>().ok());
    let number = |i: usize, or: usize| words.get(i).and_then(|w| w.parse().ok()).unwrap_or(or);
    let (Some(mode), Some(own), Some(peer)) = (words.first(), address(1), address(2)) else {
        eprintln!("usage: udp_batches answer|stream|pingpong OWN_ADDRESS PEER_ADDRESS [...]");
        std::process::exit(2);
    };
    let yield_after = std::env::var("YIELD_AFTER")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(16);
    let mut bench = Bench {
        link: link()?,
        own,
        peer,
        empty: 0,
        yield_after,
    };
    match mode.as_str() {
        "answer" => bench.answer(),
        "stream" => bench.stream(number(3, 3) as u64, number(4, 4140), number(5, 15)),
        _ => bench.pingpong(number(3, 50_000), number(4, 64)),
    }
}

fn link() -> io::Result<UdpLink> {
    UdpLink::new(SlotSockets {
        recv_v4: receive_socket(false, ROCE_PORT, true)?,
        recv_v6: receive_socket(true, ROCE_PORT, true).ok(),
        send_v4: vec![free_send_socket(false, 0xC001)?],
        send_v6: free_send_socket(true, 0xC001).into_iter().collect(),
        rings: Rings::default(),
    })
}

struct Bench {
    link: UdpLink,
    own: IpAddr,
    peer: IpAddr,
    /// Looks in a row that found nothing, and how many before the processor is given away.
    empty: u32,
    yield_after: u32,
}

impl Bench {
    fn batch<'a>(&self, segment: usize, data: &'a [u8]) -> TxBatch<'a> {
        TxBatch {
            singly: false,
            src: self.own,
            dst: self.peer,
            ifindex: 0,
            sport: 0xC001,
            traffic_class: 0,
            hop_limit: 64,
            segment: segment as u16,
            data,
        }
    }

    fn send(&mut self, segment: usize, data: &[u8]) {
        let batch = self.batch(segment, data);
        while self.link.send(&[batch]).sent == 0 {}
    }

    /// Gives the processor away after some empty looks: the kernel may need it to deliver (it
    /// defers work to threads of its own), or the peer.
    fn patience(&mut self, got: usize) {
        self.empty = if got == 0 { self.empty + 1 } else { 0 };
        if self.yield_after > 0 && self.empty >= self.yield_after {
            self.empty = 0;
            std::thread::yield_now();
        }
    }

    /// Does what the other end asks until it has enough.
    fn answer(&mut self) -> io::Result<()> {
        loop {
            let mut reply: Vec<Vec<u8>> = Vec::new();
            let mut quit = false;
            let mut checksum = 0u64;
            self.link.recv(8, &mut |frame| {
                match frame.data.first() {
                    Some(&ACKNOWLEDGE) => {
                        // Reads the payload once, as a CRC would.
                        let words = frame.data.chunks_exact(8);
                        checksum = words.fold(checksum, |sum, w| {
                            sum ^ u64::from_ne_bytes(w.try_into().unwrap_or_default())
                        });
                        if frame.seg_index + 1 == frame.batch_len {
                            reply.push(vec![frame.batch_len as u8; 16]);
                        }
                    }
                    Some(&ECHO) => reply.push(frame.data.to_vec()),
                    Some(&QUIT) => quit = true,
                    _ => {}
                }
            })?;
            std::hint::black_box(checksum);
            self.patience(reply.len());
            for data in reply {
                self.send(0, &data);
            }
            if quit {
                eprintln!("lost {}", self.link.rx_lost());
                return Ok(());
            }
        }
    }

    fn stream(&mut self, seconds: u64, segment: usize, segments: usize) -> io::Result<()> {
        let data = vec![ACKNOWLEDGE; segment * segments];
        let (start, mut heard) = (Instant::now(), Instant::now());
        let (mut waiting, mut packets, mut stalls) = (0, 0, 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            while waiting < WINDOW * segments {
                self.send(segment, &data);
                waiting += segments;
            }
            let mut acknowledged = 0;
            self.link
                .recv(8, &mut |frame| acknowledged += usize::from(frame.data[0]))?;
            self.patience(acknowledged);
            if acknowledged > 0 {
                heard = Instant::now();
                packets += acknowledged;
                waiting = waiting.saturating_sub(acknowledged);
            } else if heard.elapsed() > Duration::from_millis(20) {
                (waiting, stalls, heard) = (0, stalls + 1, Instant::now());
            }
        }
        let took = start.elapsed().as_secs_f64();
        let bits = (packets * segment * 8) as f64;
        println!(
            "{segments} x {segment} B: {:.2} Gbit/s, {:.2} us a batch, {stalls} stalls",
            bits / took / 1e9,
            took * 1e6 * segments as f64 / packets as f64,
        );
        self.send(0, &[QUIT]);
        Ok(())
    }

    fn pingpong(&mut self, rounds: usize, bytes: usize) -> io::Result<()> {
        let data = vec![ECHO; bytes.max(1)];
        let mut took = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let start = Instant::now();
            self.send(0, &data);
            while self.link.recv(1, &mut |_| {})? == 0 {
                self.patience(0);
                if start.elapsed() > Duration::from_millis(20) {
                    break;
                }
            }
            took.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        took.sort_by(f64::total_cmp);
        let at = |part: f64| took[(took.len() as f64 * part) as usize];
        println!(
            "{bytes} B: median {:.2} us, p99 {:.2} us half a round trip",
            at(0.5),
            at(0.99)
        );
        self.send(0, &[QUIT]);
        Ok(())
    }
}
