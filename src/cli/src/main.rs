//! The `rocebud` command.

#![deny(unsafe_code)]

mod args;
mod daemon;
mod devices;
mod interop;
mod namespace;
mod run;
mod status;
mod story;
mod sys;
mod sysfs;
mod table;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use rocebud_ctl::Client;

/// What a command ends with when it does not do what it was asked.
#[derive(Debug)]
struct Failure {
    /// One line: cause and remedy.
    message: String,
    /// Exit status.
    status: u8,
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            status: 1,
        }
    }
}

impl From<rocebud_ctl::CtlError> for Failure {
    fn from(error: rocebud_ctl::CtlError) -> Self {
        Self::new(error.message)
    }
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Run(args) => run::run(args),
        Command::Daemon(args) => daemon::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Status(args) => status::run(args),
        Command::Interop(args) => interop::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "rocebud: {}", failure.message);
            ExitCode::from(failure.status)
        }
    }
}

/// Connects to the daemon, and says what one that had to be started wants known.
fn connect_or_start() -> Result<Client, Failure> {
    let client = Client::connect_or_start()?;
    for remark in client.remarks() {
        let _ = writeln!(std::io::stderr(), "rocebud: {remark}");
    }
    Ok(client)
}

/// Prints what a command found. A reader that has seen enough (`| head`) is no error. Names of interfaces
/// may hold characters that steer a terminal: question marks instead.
fn print(text: &str) -> Result<(), Failure> {
    let steers = |c: char| c.is_control() && c != '\n';
    let text = text.replace(steers, "?");
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("writing the output: {error}")))
        }
        _ => Ok(()),
    }
}
