//! `rocebud interop`: becomes `rocebud-interop`, a program of its own, since it tests what this one is made of.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Failure;
use crate::args::InteropArgs;

pub(crate) fn run(args: &InteropArgs) -> Result<(), Failure> {
    let exe = std::env::current_exe()
        .map_err(|error| Failure::new(format!("finding this program's own path: {error}")))?;
    let program = exe.with_file_name("rocebud-interop");
    let error = Command::new(&program).args(&args.arguments).exec();
    Err(Failure::new(format!(
        "{} cannot be run ({error}): `make build` puts it there",
        program.display()
    )))
}
