//! Variables that programs read, with values that mean nothing: named in one line, and never in the way.
//! Those that a daemon reads are tried in `src/cli/tests/daemon/settings.rs`.

use rocebud_peer::netns::Host;
use rocebud_peer::runner::{Case, Need};
use rocebud_peer::tree;
use rocebud_peer::{Outcome, ensure};

const LEVELS: &str = "which counts as not set: it wants off, error, warn, info or debug";
const OFF_OR_PATH: &str =
    "which counts as not set: it wants off, or the whole path of a libibverbs.so.1";
const LEFT_OUT: &str = "RDMA devices of the machine's own are left out";

pub(crate) fn cases() -> Vec<Case> {
    let root = [Need::Root, Need::Build, Need::Program("ibv_devinfo")];
    vec![Case::new(
        "settings_that_mean_nothing_are_named",
        &root,
        settings,
    )]
}

/// Variable, value, and what the one line begins and ends with; both empty where nothing is to be said.
fn table() -> Vec<(&'static str, String, String, &'static str)> {
    let of = |variable, value: &str, ends| {
        let begins = format!("rocebud: {variable} is {value:?}, ");
        (variable, value.to_owned(), begins, ends)
    };
    let real = |path: &str, why| {
        let begins = format!("rocebud: ROCEBUD_REAL names {path}, {why}");
        ("ROCEBUD_REAL", path.to_owned(), begins, LEFT_OUT)
    };
    let fine = |variable, value: &str| (variable, value.to_owned(), String::new(), "");
    let own = tree::root().join("build/lib/libibverbs.so.1");
    let program = tree::rocebud();
    vec![
        of("ROCEBUD_LOG", "bogus", LEVELS),
        of("ROCEBUD_LOG", "Error", LEVELS),
        of("ROCEBUD_LOG", "2", LEVELS),
        fine("ROCEBUD_LOG", "error"),
        fine("ROCEBUD_LOG", ""),
        of("ROCEBUD_REAL", "maybe", OFF_OR_PATH),
        of("ROCEBUD_REAL", "libibverbs.so.1", OFF_OR_PATH),
        real(
            "/nonexistent/libibverbs.so.1",
            "which cannot be read (No such file or directory",
        ),
        real(
            "/etc/passwd/libibverbs.so.1",
            "which cannot be read (Not a directory",
        ),
        real("/etc/passwd", "which is no library for this machine"),
        real("/", "which is no file"),
        real("/dev/zero", "which is no file"),
        real(&own.display().to_string(), "which is rocebud's own"),
        fine("ROCEBUD_REAL", &program.display().to_string()),
        fine("ROCEBUD_REAL", "off"),
        fine("ROCEBUD_REAL", ""),
        fine("ROCEBUD_SYSFS", ""),
        of(
            "ROCEBUD_SYSFS",
            "tree",
            "it wants a whole path of at most 1024 bytes",
        ),
    ]
}

fn settings() -> Outcome {
    let host = Host::loopback()?;
    for (variable, value, begins, ends) in table() {
        // `rocebud run` sets ROCEBUD_SYSFS itself.
        let set = format!("{variable}={value}");
        let list = host.rocebud("env", &[&set, "ibv_devices"]);
        let said = list.limit(20).run()?.succeeded()?;
        ensure(said.contains("rb_lo"), || format!("{set}: {said}"))?;
        let lines: Vec<&str> = said
            .lines()
            .filter(|l| l.starts_with("rocebud: "))
            .collect();
        let fits = |line: &&str| line.starts_with(&begins) && line.ends_with(ends);
        let expected = usize::from(!begins.is_empty());
        ensure(lines.len() == expected && lines.iter().all(fits), || {
            format!("{set}: not '{begins}… {ends}' once in\n{said}")
        })?;
    }
    Ok(())
}
