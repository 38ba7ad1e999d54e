//! A small benchmark of the Rust verbs, and an example of a program that uses them.
//!
//! ```text
//! loop_bw server PORT
//! loop_bw client HOST PORT [write|read|send|lat] [SIZE] [COUNT] [MTU]
//! ```
//!
//! Client and server exchange addresses over TCP, then move COUNT messages of SIZE bytes through
//! one RC queue pair with a window of 128. `lat` is a ping-pong of SENDs; it prints half of the
//! median round trip. HOST is an IPv4 address on an interface of the server; both choose the
//! first device that is not the loopback, or the loopback for 127.0.0.1.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use rocebud_verbs::*;

const WINDOW: u64 = 128;

type Failure = Box<dyn std::error::Error>;

struct Options {
    what: String,
    size: usize,
    count: u64,
    mtu: u32,
}

struct End {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    buffer: Vec<u8>,
    gid_index: u8,
    gid: Gid,
    _context: Context,
}

/// What the ends tell each other.
struct Hello {
    qpn: u32,
    gid: Gid,
    rkey: u32,
    addr: u64,
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().collect();
    let arg = |at: usize| args.get(at).map(String::as_str);
    match (arg(1), arg(2), arg(3)) {
        (Some("server"), Some(port), None) => server(port.parse()?),
        (Some("client"), Some(host), Some(port)) => {
            let number = |at: usize, default: usize| arg(at).map_or(Ok(default), str::parse);
            let options = Options {
                what: arg(4).unwrap_or("write").to_owned(),
                size: number(5, 65_536)?,
                count: number(6, 10_000)? as u64,
                mtu: number(7, 4096)? as u32,
            };
            client(host, port.parse()?, &options)
        }
        _ => {
            Err("usage: loop_bw server PORT | client HOST PORT [WHAT] [SIZE] [COUNT] [MTU]".into())
        }
    }
}

fn server(port: u16) -> Result<(), Failure> {
    let (stream, _) = TcpListener::bind(("0.0.0.0", port))?.accept()?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().ok_or("the client went")??;
    let words: Vec<&str> = first.split_whitespace().collect();
    let options = Options {
        what: words[0].to_owned(),
        size: words[1].parse()?,
        count: words[2].parse()?,
        mtu: words[3].parse()?,
    };
    let end = End::new(local_v4(&stream)?, &options)?;
    end.meet(&stream, &mut lines, &options)?;
    match options.what.as_str() {
        "lat" => end
            .ping_pong(options.size, options.count, false)
            .map(|_| ())?,
        "send" => end.receive(options.size, options.count)?,
        _ => {}
    }
    lines.next();
    Ok(())
}

fn client(host: &str, port: u16, options: &Options) -> Result<(), Failure> {
    let mut stream = TcpStream::connect((host, port))?;
    let Options {
        what,
        size,
        count,
        mtu,
    } = options;
    writeln!(stream, "{what} {size} {count} {mtu}")?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let end = End::new(local_v4(&stream)?, options)?;
    let peer = end.meet(&stream, &mut lines, options)?;
    let started = Instant::now();
    if what == "lat" {
        let mut times = end.ping_pong(*size, *count, true)?;
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100] as f64 / 2000.0;
        println!(
            "lat {size} B: median {:.2} us, 99% {:.2} us",
            at(50),
            at(99)
        );
    } else {
        end.stream(options, &peer)?;
        let seconds = started.elapsed().as_secs_f64();
        let gbits = (*size as f64) * (*count as f64) * 8.0 / seconds / 1e9;
        let millions = *count as f64 / seconds / 1e6;
        println!("{what} {size} B x {count}: {gbits:.2} Gbit/s, {millions:.4} M messages/s");
    }
    if std::env::var_os("LOOP_BW_COUNTERS").is_some() {
        for counter in Counter::ALL {
            println!("  {} {}", counter.name(), end._context.counter(*counter));
        }
    }
    writeln!(stream, "bye")?;
    Ok(())
}

fn local_v4(stream: &TcpStream) -> Result<Ipv4Addr, Failure> {
    match stream.local_addr()?.ip() {
        std::net::IpAddr::V4(ip) => Ok(ip),
        std::net::IpAddr::V6(_) => Err("IPv4 only".into()),
    }
}

impl End {
    fn new(own: Ipv4Addr, options: &Options) -> Result<Self, Failure> {
        let gid = Gid::from_v4(own.octets());
        let devices = device_list()?;
        let has = |d: &&Device| d.info().has_gid(gid);
        let context = devices.iter().find(has).ok_or("no device")?.open()?;
        let gid_index = context
            .gid_table()
            .iter()
            .find(|e| e.gid == gid)
            .map(|e| e.gid_index);
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(1024, None, 0, 0)?;
        let create = QpCreate {
            cap: QpCap {
                max_send_wr: WINDOW as u32,
                max_recv_wr: WINDOW as u32 * 2,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            ..QpCreate::new(QpType::Rc, &cq, &cq)
        };
        let qp = pd.create_qp(&create)?;
        let buffer = vec![7u8; options.size.max(1) + 4096];
        let at = (buffer.as_ptr() as u64).next_multiple_of(4096);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.reg_mr(at, options.size as u64, at, access)?;
        Ok(Self {
            qp,
            cq,
            mr,
            buffer,
            gid_index: gid_index.unwrap_or(0) as u8,
            gid,
            _context: context,
        })
    }

    fn at(&self) -> u64 {
        (self.buffer.as_ptr() as u64).next_multiple_of(4096)
    }

    fn meet(
        &self,
        mut stream: &TcpStream,
        lines: &mut impl Iterator<Item = std::io::Result<String>>,
        options: &Options,
    ) -> Result<Hello, Failure> {
        let (qpn, rkey) = (self.qp.qpn().value(), self.mr.rkey().0);
        let gid = u128::from_be_bytes(self.gid.0);
        writeln!(stream, "{qpn} {gid} {rkey} {}", self.at())?;
        let line = lines.next().ok_or("the other end went")??;
        let words: Vec<&str> = line.split_whitespace().collect();
        let peer = Hello {
            qpn: words[0].parse()?,
            gid: Gid(words[1].parse::<u128>()?.to_be_bytes()),
            rkey: words[2].parse()?,
            addr: words[3].parse()?,
        };
        self.connect(&peer, options.mtu)?;
        if options.what == "lat" || options.what == "send" {
            for _ in 0..WINDOW * 2 {
                self.post_recv(options.size)?;
            }
        }
        writeln!(stream, "ready")?;
        lines.next().ok_or("the other end went")??;
        Ok(peer)
    }

    fn connect(&self, peer: &Hello, mtu: u32) -> Result<(), Failure> {
        let mtu = Mtu::ALL.into_iter().find(|m| m.bytes() == mtu);
        let mut attr = QpAttr {
            qp_state: QpState::Init,
            port_num: 1,
            qp_access_flags: Access::REMOTE_WRITE | Access::REMOTE_READ,
            ..QpAttr::default()
        };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.qp.modify(&attr, init)?;
        attr.qp_state = QpState::Rtr;
        attr.path_mtu = mtu.ok_or("no such MTU")?;
        attr.dest_qp_num = Qpn::new(peer.qpn);
        attr.rq_psn = Psn::new(peer.qpn);
        attr.max_dest_rd_atomic = 16;
        attr.min_rnr_timer = 12;
        attr.ah_attr = AhAttr {
            dgid: peer.gid,
            sgid_index: self.gid_index,
            hop_limit: 64,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        let rtr = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        self.qp.modify(&attr, rtr)?;
        attr.qp_state = QpState::Rts;
        attr.sq_psn = Psn::new(self.qp.qpn().value());
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 16;
        let rts = AttrMask::STATE
            | AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        self.qp.modify(&attr, rts)?;
        Ok(())
    }

    fn sges(&self, size: usize) -> SgeList {
        let sge = Sge {
            addr: self.at(),
            length: size as u32,
            lkey: self.mr.lkey(),
        };
        [sge].into_iter().collect()
    }

    fn post_recv(&self, size: usize) -> Result<(), Misuse> {
        self.qp.post_recv(RecvWr {
            wr_id: 0,
            sges: self.sges(size),
        })
    }

    fn post(&self, op: SendOp, size: usize) -> Result<(), Misuse> {
        self.qp.post_send(SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(self.sges(size)),
            ud: None,
            xrc_srqn: 0,
        })
    }

    fn poll(&self, out: &mut [Wc]) -> Result<usize, Failure> {
        let n = self.cq.poll(out)?;
        match out[..n].iter().find(|wc| wc.status != WcStatus::Success) {
            Some(wc) => Err(format!("{:?} (reason {})", wc.status, wc.vendor_err).into()),
            None => Ok(n),
        }
    }

    fn stream(&self, options: &Options, peer: &Hello) -> Result<(), Failure> {
        let remote = Remote {
            addr: peer.addr,
            rkey: RKey(peer.rkey),
        };
        let op = match options.what.as_str() {
            "write" => SendOp::Write { remote },
            "read" => SendOp::Read { remote },
            "send" => SendOp::Send,
            other => return Err(format!("what is {other}?").into()),
        };
        let (mut posted, mut done) = (0, 0);
        let mut out = [Wc::default(); 16];
        while done < options.count {
            while posted < options.count && posted - done < WINDOW {
                self.post(op, options.size)?;
                posted += 1;
            }
            done += self.poll(&mut out)? as u64;
        }
        Ok(())
    }

    fn receive(&self, size: usize, count: u64) -> Result<(), Failure> {
        let mut out = [Wc::default(); 16];
        let mut done = 0;
        while done < count {
            let n = self.poll(&mut out)?;
            for _ in 0..n {
                self.post_recv(size)?;
            }
            done += n as u64;
        }
        Ok(())
    }

    /// Round trips in nanoseconds, at the end that begins.
    fn ping_pong(&self, size: usize, count: u64, begins: bool) -> Result<Vec<u64>, Failure> {
        let mut times = Vec::with_capacity(count as usize);
        let (mut sent, mut got) = (0u64, 0u64);
        let mut out = [Wc::default(); 4];
        let mut started = Instant::now();
        if begins {
            self.post(SendOp::Send, size)?;
            sent += 1;
        }
        while got < count {
            let n = self.poll(&mut out)?;
            for wc in out[..n].iter().filter(|wc| wc.opcode == WcOpcode::Recv) {
                debug_assert_eq!(wc.byte_len as usize, size);
                got += 1;
                if begins {
                    times.push(started.elapsed().as_nanos() as u64);
                }
                self.post_recv(size)?;
                if sent < count {
                    started = Instant::now();
                    self.post(SendOp::Send, size)?;
                    sent += 1;
                }
            }
        }
        Ok(times)
    }
}
