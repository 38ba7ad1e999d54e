//! Every target's body over every file of its corpus, on stable Rust.
//!
//! `cargo test -p rocebud-fuzz-bodies --test replay [-- WORD]` runs the files whose path has WORD.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rocebud_fuzz_bodies::TARGETS;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        return ExitCode::SUCCESS;
    }
    let word = args.iter().find(|a| !a.starts_with('-'));
    // Before any thread exists.
    let place = rocebud_fuzz_bodies::place::enter();
    if let Err(why) = &place {
        println!(
            "replay: no network namespace of our own ({why}): what needs a daemon is left out"
        );
    }
    watch_panics();
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    for target in TARGETS {
        let started = Instant::now();
        let files = corpus(target.name);
        if target.needs_place && place.is_err() {
            ignored += files.len();
            continue;
        }
        for file in &files {
            if word.is_some_and(|w| !file.to_string_lossy().contains(w.as_str())) {
                continue;
            }
            let bytes = std::fs::read(file).expect("a file of the corpus");
            let good = catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes))).is_ok();
            if good && !PANICKED.swap(false, Relaxed) {
                passed += 1;
            } else {
                println!("FAILED: {}", file.display());
                failed += 1;
            }
        }
        println!(
            "replay {}: {} files, {} ms",
            target.name,
            files.len(),
            started.elapsed().as_millis()
        );
        if files.is_empty() {
            println!("FAILED: {} has no corpus", target.name);
            failed += 1;
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; {ignored} ignored");
    ExitCode::from(u8::from(failed != 0))
}

/// A panic that somebody caught, or that ended another thread.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// A panic is a failure even where the C boundary makes an error code of it.
fn watch_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICKED.store(true, Relaxed);
        before(info);
    }));
}

/// The files of a target's corpus, by name.
fn corpus(target: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../corpus")
        .join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}
