//! Runs one input of engine_ops and prints every operation, frame and completion:
//! `cargo run -p rocebud-fuzz-bodies --example explain -- FILE`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(file) = std::env::args().nth(1) else {
        eprintln!("usage: explain FILE");
        return ExitCode::from(2);
    };
    match std::fs::read(&file) {
        Ok(bytes) => {
            rocebud_fuzz_bodies::engine_ops::explain(&bytes);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{file}: {error}");
            ExitCode::FAILURE
        }
    }
}
