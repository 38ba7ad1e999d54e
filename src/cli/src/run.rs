//! `rocebud run`: the environment in which a verbs program finds rocebud, then the program.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rocebud_ctl::DeviceInfo;

use crate::args::RunArgs;
use crate::{Failure, connect_or_start, namespace, sysfs};

pub(crate) fn run(args: RunArgs) -> Result<(), Failure> {
    let exe = std::env::current_exe()
        .map_err(|error| Failure::new(format!("finding this program's own path: {error}")))?;
    let lib = library_directory(&exe)?;
    // The daemon starts outside of any namespace that we make.
    let devices = connect_or_start()?.devices()?;
    let (name, arguments) = args
        .program
        .split_first()
        .ok_or_else(|| Failure::new("no program given"))?;
    let mut command = Command::new(name);
    command.args(arguments);
    command.env("LD_LIBRARY_PATH", prefixed(&lib, "LD_LIBRARY_PATH"));
    if std::env::var_os("ROCEBUD_DAEMON").is_none() {
        command.env("ROCEBUD_DAEMON", &exe);
    }
    let shim = lib.join("rocebud-shim.so");
    let shimmed = shim.is_file();
    if shimmed {
        command.env("LD_PRELOAD", prefixed(&shim, "LD_PRELOAD"));
    }
    show_sysfs(&mut command, &devices, args.ns, shimmed)?;
    Err(not_run(name, &command.exec()))
}

/// Shows the sysfs tree to the program, if there is a way. Only `--ns` insists on it.
fn show_sysfs(
    command: &mut Command,
    devices: &[DeviceInfo],
    ns: bool,
    shimmed: bool,
) -> Result<(), Failure> {
    let tree = sysfs::run_directory().and_then(|dir| {
        sysfs::write(&dir, devices)?;
        Ok(dir)
    });
    let tree = match tree {
        Ok(tree) => tree,
        Err(error) if ns => {
            return Err(Failure::new(format!(
                "--ns needs a directory to write to, and there is none ({error}): set \
                 XDG_RUNTIME_DIR to one"
            )));
        }
        // Most programs never look.
        Err(_) => return Ok(()),
    };
    if ns {
        return namespace::enter(&tree);
    }
    if shimmed {
        command.env("ROCEBUD_SYSFS", &tree);
    }
    Ok(())
}

/// `../lib` of the program, which must hold the library.
fn library_directory(exe: &Path) -> Result<PathBuf, Failure> {
    let prefix = exe
        .parent()
        .and_then(Path::parent)
        .unwrap_or_else(|| Path::new("/"));
    let lib = prefix.join("lib");
    if lib.join("libibverbs.so.1").exists() {
        Ok(lib)
    } else {
        Err(Failure::new(format!(
            "{} holds no libibverbs.so.1: run the `rocebud` of a complete build (`make`, then \
             build/bin/rocebud)",
            lib.display()
        )))
    }
}

/// `first`, then what the variable holds.
fn prefixed(first: &Path, variable: &str) -> OsString {
    let mut value = first.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

/// As shells answer for a program that cannot be run.
fn not_run(name: &OsStr, error: &io::Error) -> Failure {
    let name = name.to_string_lossy();
    let (message, status) = match error.kind() {
        io::ErrorKind::NotFound => (
            format!("{name} is not found: check the name, or install the package that has it"),
            127,
        ),
        _ => (format!("{name} cannot be run: {error}"), 126),
    };
    Failure { message, status }
}
