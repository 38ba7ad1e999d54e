//! What a new socket starts with: the files that upstream reads, one number each.

use std::sync::OnceLock;

use rocebud_rsocket::Config;
use rocebud_rsocket::options::Options;

/// Where upstream, as distributions build it, looks.
const FOLDER: &str = "/etc/rdma/rsocket";

/// The options of a new socket; the files are read once.
pub(super) fn options() -> Options {
    static READ: OnceLock<Options> = OnceLock::new();
    *READ.get_or_init(|| read(FOLDER, "/proc/sys/net/ipv4/tcp_keepalive_time"))
}

fn read(folder: &str, idle: &str) -> Options {
    let mut options = Options::default();
    let c = &mut options.config;
    let file = |name: &str| number(&format!("{folder}/{name}"));
    let set = |name: &str, to: &mut u16| {
        *to = file(name).map_or(*to, |n| u16::try_from(n).unwrap_or(u16::MAX));
    };
    set("sqsize_default", &mut c.send_queue);
    set("rqsize_default", &mut c.receive_queue);
    set("inline_default", &mut c.inline);
    set("iomap_size", &mut c.iomap_entries);
    c.receive_ring = file("mem_default").unwrap_or(c.receive_ring);
    c.send_ring = file("wmem_default").unwrap_or(c.send_ring);
    *c = Config::clamped(*c);
    options.keep_idle_s = number(idle)
        .filter(|s| *s != 0)
        .unwrap_or(options.keep_idle_s);
    options
}

fn number(path: &str) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
