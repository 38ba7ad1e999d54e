//! Prints what guarded copies, their checks and the CRC cost on this machine.

use rocebud_mem::{Guard, atomic_fetch_add, copy_in, copy_in_crc, copy_out, crc32, install};
use std::hint::black_box;
use std::time::Instant;

fn main() -> std::io::Result<()> {
    install()?;
    time("signal mask looked at (Guard::new)", 0, 1_000_000, || {
        drop(black_box(Guard::new()))
    });
    let _guard = Guard::new();
    let mut word = vec![0u64; 1];
    let at = word.as_mut_ptr() as usize;
    time("atomic_fetch_add", 8, 5_000_000, || {
        _ = black_box(atomic_fetch_add(at, 1))
    });
    for len in [8, 64, 256, 1024, 4096, 65_536] {
        let rounds = (400_000_000 / (len + 100)).min(5_000_000);
        // The application's buffer lies oddly, ours at a page.
        let theirs = vec![7u8; len + 4096 + 24];
        let their = &theirs[24..24 + len];
        let at = their.as_ptr() as usize;
        let mut ours = vec![0u8; len];
        time("copy_in", len, rounds, || {
            _ = black_box(copy_in(&mut ours, at))
        });
        time("copy_out", len, rounds, || {
            _ = black_box(copy_out(at, &ours))
        });
        time("copy_from_slice", len, rounds, || {
            ours.copy_from_slice(black_box(their))
        });
        time("crc32", len, rounds, || _ = black_box(crc32(0, &ours)));
        time("copy_in_crc", len, rounds, || {
            _ = black_box(copy_in_crc(&mut ours, at, 0))
        });
    }
    Ok(())
}

fn time(what: &str, len: usize, rounds: usize, mut work: impl FnMut()) {
    let start = Instant::now();
    for _ in 0..rounds {
        work();
    }
    let ns = start.elapsed().as_secs_f64() * 1e9 / rounds as f64;
    println!(
        "{what:36} {len:6} B {ns:9.1} ns {:7.1} GB/s",
        len as f64 / ns
    );
}
