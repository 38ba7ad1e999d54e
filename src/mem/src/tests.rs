//! Every operation over good and bad memory, each way of guarding.

mod sys;

use super::*;
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use sys::{PAGE, Pages, block_faults};

/// Runs a test with the signals let in and, in another thread, blocked.
fn both_ways(test: impl Fn(Mode) + Sync) {
    install().expect("handlers");
    assert_eq!(Guard::new().mode(), Mode::Handlers);
    test(Mode::Handlers);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_faults(true);
            assert_eq!(Guard::new().mode(), Mode::ProcessVm);
            test(Mode::ProcessVm);
            assert_eq!(Guard::new().mode(), Mode::ProcessVm, "still blocked");
        });
    });
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 253) as u8).collect()
}

/// Lengths around every branch of the copy routines.
const LENGTHS: &[usize] = &[
    0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 63, 64, 65, 127, 255, 256, 257, 300, 511, 4096, 9001,
];

#[test]
fn copies_move_every_length_at_every_alignment() {
    both_ways(|_| {
        let pages = Pages::new(8);
        for &len in LENGTHS {
            for (a, b) in [(0, 0), (1, 0), (0, 1), (7, 13), (31, 33), (63, 5)] {
                let data = pattern(len);
                let mut buffer = vec![0xEE; len + 64];
                copy_out(pages.addr + a, &data).expect("good memory");
                copy_in(&mut buffer[b..b + len], pages.addr + a).expect("good memory");
                assert_eq!(&buffer[b..b + len], &data[..], "{len} bytes at {a}/{b}");
                assert!(buffer[..b].iter().all(|x| *x == 0xEE), "nothing before");
                assert!(
                    buffer[b + len..].iter().all(|x| *x == 0xEE),
                    "nothing behind"
                );
            }
        }
    });
}

#[test]
fn a_copy_out_touches_nothing_around_its_range() {
    both_ways(|_| {
        let pages = Pages::new(4);
        for &len in LENGTHS {
            copy_out(pages.addr, &vec![0x55; 3 * PAGE]).expect("good memory");
            copy_out(pages.addr + 100, &vec![0xAA; len]).expect("good memory");
            let mut all = vec![0; 3 * PAGE];
            copy_in(&mut all, pages.addr).expect("good memory");
            assert!(all[..100].iter().all(|x| *x == 0x55));
            assert!(all[100..100 + len].iter().all(|x| *x == 0xAA));
            assert!(all[100 + len..].iter().all(|x| *x == 0x55));
        }
    });
}

/// A page that cannot be read nor written, in the middle of three.
fn holes() -> Vec<(&'static str, Pages)> {
    let gone = Pages::new(3);
    gone.unmap(1);
    let closed = Pages::new(3);
    closed.protect(1, libc::PROT_NONE);
    let file = tempfile(3 * PAGE);
    let short = Pages::of_file(&file, 3);
    copy_out(short.addr, &[1]).expect("good memory");
    file.set_len(PAGE as u64).expect("truncate");
    vec![
        ("unmapped", gone),
        ("PROT_NONE", closed),
        ("behind the end of the file", short),
    ]
}

fn tempfile(len: usize) -> std::fs::File {
    let name = format!(
        "rocebud-mem-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    );
    let path = std::env::temp_dir().join(name);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .expect("a temporary file");
    std::fs::remove_file(&path).expect("unlink");
    file.write_all_at(&vec![0; len], 0).expect("write");
    file
}

#[test]
fn a_bad_page_is_a_fault_and_the_good_part_is_copied() {
    both_ways(|_| {
        for (kind, pages) in holes() {
            let edge = pages.addr + PAGE;
            for before in [0, 1, 5, 16, 33, 100, 128, 200, 1000, 4000] {
                for after in [1, 31, 200, 3000] {
                    let data = pattern(before + after);
                    let fault = Fault {
                        addr: edge,
                        done: before,
                    };
                    let at = edge - before;
                    assert_eq!(copy_out(at, &data), Err(fault), "{kind} {before}+{after}");
                    let mut back = vec![0; before + after];
                    assert_eq!(
                        copy_in(&mut back, at),
                        Err(fault),
                        "{kind} {before}+{after}"
                    );
                    assert_eq!(back[..before], data[..before], "{kind}: the good part");
                    assert!(back[before..].iter().all(|x| *x == 0));
                    let crc = copy_in_crc(&mut back, at, 0);
                    assert_eq!(crc, Err(fault), "{kind} {before}+{after}");
                }
            }
        }
    });
}

#[test]
fn words_of_bad_pages_are_faults() {
    both_ways(|_| {
        for (kind, pages) in holes() {
            let addr = pages.addr + PAGE + 64;
            let fault = Fault { addr, done: 0 };
            assert_eq!(atomic_cmp_swap(addr, 1, 2), Err(fault), "{kind}");
            assert_eq!(atomic_fetch_add(addr, 1), Err(fault), "{kind}");
            assert_eq!(load_u64(addr), Err(fault), "{kind}");
            assert_eq!(store_u64(addr, 1), Err(fault), "{kind}");
            for write in [false, true] {
                let fault = Fault {
                    addr: pages.addr + PAGE,
                    done: 3,
                };
                assert_eq!(
                    probe(pages.addr + PAGE - 3, 10, write),
                    Err(fault),
                    "{kind}"
                );
                assert_eq!(probe(pages.addr, PAGE, write), Ok(()), "{kind}");
            }
        }
    });
}

#[test]
fn a_read_only_page_can_be_read_and_not_written() {
    both_ways(|_| {
        let pages = Pages::new(2);
        let data = pattern(PAGE);
        copy_out(pages.addr + PAGE, &data).expect("good memory");
        pages.protect(1, libc::PROT_READ);
        let addr = pages.addr + PAGE;
        let fault = Fault { addr, done: 0 };
        let mut back = vec![0; PAGE];
        assert_eq!(copy_in(&mut back, addr), Ok(()));
        assert_eq!(back, data);
        assert_eq!(copy_out(addr, &[1, 2, 3]), Err(fault));
        assert_eq!(copy_out(addr - 7, &[1; 20]), Err(Fault { addr, done: 7 }));
        assert_eq!(store_u64(addr, 7), Err(fault));
        assert_eq!(atomic_fetch_add(addr, 7), Err(fault));
        assert_eq!(atomic_cmp_swap(addr, 7, 8), Err(fault));
        assert_eq!(
            load_u64(addr).map(u64::to_ne_bytes).as_ref(),
            Ok(data[..8].try_into().unwrap())
        );
        assert_eq!(probe(addr, PAGE, false), Ok(()));
        assert_eq!(probe(addr, PAGE, true), Err(fault));
    });
}

#[test]
fn addresses_that_cannot_be_are_faults() {
    both_ways(|_| {
        let mut back = [0; 16];
        // Null, not canonical, kernel, and the very end.
        for addr in [
            0,
            8,
            0x8000_0000_0000_0000,
            0xffff_8000_0000_0000,
            usize::MAX - 7,
        ] {
            let fault = Fault { addr, done: 0 };
            assert_eq!(copy_in(&mut back, addr), Err(fault));
            assert_eq!(copy_out(addr, &[0; 300]), Err(fault));
            assert_eq!(load_u64(addr & !7).map_err(|f| f.done), Err(0));
            assert_eq!(probe(addr, 4, true), Err(fault));
            assert!(probe(addr, usize::MAX, false).is_err());
        }
        assert_eq!(copy_in(&mut [], 0), Ok(()));
        assert_eq!(copy_out(0, &[]), Ok(()));
        assert_eq!(probe(0, 0, true), Ok(()));
    });
}

#[test]
fn words_do_what_they_say() {
    both_ways(|_| {
        let pages = Pages::new(1);
        let at = pages.addr + 8;
        assert_eq!(store_u64(at, 5), Ok(()));
        assert_eq!(atomic_cmp_swap(at, 4, 9), Ok(5));
        assert_eq!(load_u64(at), Ok(5));
        assert_eq!(atomic_cmp_swap(at, 5, u64::MAX), Ok(5));
        assert_eq!(atomic_fetch_add(at, 3), Ok(u64::MAX));
        assert_eq!(load_u64(at), Ok(2));
        assert_eq!((load_u64(at - 8), load_u64(at + 8)), (Ok(0), Ok(0)));
        for odd in 1..8 {
            assert_eq!(
                atomic_fetch_add(at + odd, 1),
                Err(Fault {
                    addr: at + odd,
                    done: 0
                })
            );
        }
    });
}

#[test]
fn atomics_of_many_threads_lose_nothing_while_others_fault() {
    install().expect("handlers");
    let pages = Pages::new(2);
    pages.protect(1, libc::PROT_NONE);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let pages = &pages;
            scope.spawn(move || {
                block_faults(thread % 4 == 3);
                let _guard = (thread % 2 == 0).then(Guard::new);
                for _ in 0..2000 {
                    atomic_fetch_add(pages.addr, 1).expect("good memory");
                    let mut back = [0; 40];
                    let fault = Fault {
                        addr: pages.addr + PAGE,
                        done: 20,
                    };
                    assert_eq!(copy_in(&mut back, fault.addr - 20), Err(fault));
                }
            });
        }
    });
    assert_eq!(load_u64(pages.addr), Ok(16_000));
}

#[test]
fn a_probe_brings_pages_in_and_keeps_their_contents() {
    both_ways(|_| {
        let pages = Pages::new(6);
        copy_out(pages.addr + 3 * PAGE, b"kept").expect("good memory");
        assert_eq!(probe(pages.addr + 1, 5 * PAGE, true), Ok(()));
        let mut back = [0; 4];
        copy_in(&mut back, pages.addr + 3 * PAGE).expect("good memory");
        assert_eq!(&back, b"kept");
    });
}

#[test]
fn guards_end_in_any_order() {
    install().expect("handlers");
    let first = Guard::new();
    let second = Guard::new();
    drop(first);
    drop(second);
    block_faults(true);
    let mode = Guard::new().mode();
    block_faults(false);
    assert_eq!(mode, Mode::ProcessVm, "no guard lives: looked at anew");
}

#[test]
fn guards_nest_and_end() {
    install().expect("handlers");
    {
        let outer = Guard::new();
        let inner = Guard::new();
        assert_eq!(
            (outer.mode(), inner.mode()),
            (Mode::Handlers, Mode::Handlers)
        );
    }
    block_faults(true);
    assert_eq!(
        Guard::new().mode(),
        Mode::ProcessVm,
        "no guard lives: looked at anew"
    );
    block_faults(false);
}

#[test]
fn unsafe_code_is_only_in_files_named_sys() {
    let mut bad = Vec::new();
    let mut rooms = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
    while let Some(room) = rooms.pop() {
        for entry in std::fs::read_dir(room)
            .expect("readable")
            .map(|e| e.expect("entry").path())
        {
            let name = entry
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if entry.is_dir() {
                rooms.push(entry);
            } else if name.ends_with(".rs") && name != "sys.rs" {
                let text = std::fs::read_to_string(&entry).expect("text");
                let word = ["unsafe", " {"].concat();
                if text.contains(&word) || text.contains(&word.replace(" {", " fn")) {
                    bad.push(entry);
                }
            }
        }
    }
    assert!(bad.is_empty(), "{bad:?}");
}

proptest! {
    #[test]
    fn crc_is_the_one_of_zlib(data in prop::collection::vec(any::<u8>(), 0..20_000), cut in any::<usize>(), crc in any::<u32>()) {
        install().expect("handlers");
        let whole = |crc, data: &[u8]| {
            let mut hasher = crc32fast::Hasher::new_with_initial(crc);
            hasher.update(data);
            hasher.finalize()
        };
        prop_assert_eq!(crc32(crc, &data), whole(crc, &data));
        let (a, b) = data.split_at(cut % (data.len() + 1));
        prop_assert_eq!(crc32(crc32(crc, a), b), whole(crc, &data));
        let mut copy = vec![0; b.len()];
        prop_assert_eq!(copy_in_crc(&mut copy, b.as_ptr() as usize, crc), Ok(whole(crc, b)));
        prop_assert_eq!(&copy[..], b);
    }
}
