//! What the command prints and how programs run under it.

use std::path::PathBuf;
use std::process::Command;

use crate::world::{ROCEBUD, actor, as_nobody, enter, output, rocebud};

/// A tree as an installation has it, with a library that nobody loads.
struct Installation(PathBuf);

impl Installation {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("rocebud-{name}-{}", std::process::id()));
        std::fs::create_dir_all(root.join("bin")).expect("mkdir");
        std::fs::create_dir_all(root.join("lib")).expect("mkdir");
        std::fs::copy(ROCEBUD, root.join("bin/rocebud")).expect("copy");
        std::fs::write(root.join("lib/libibverbs.so.1"), "").expect("write");
        Self(root)
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.0.join("bin/rocebud"));
        command
            .arg("run")
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        command
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_program_sees_the_library_first_and_its_status_is_ours() {
    if !enter() {
        return;
    }
    let tree = Installation::new("run");
    let lib = tree.0.join("lib");
    let mut command = tree.run(&["--", "sh", "-c", "echo $LD_LIBRARY_PATH; exit 7"]);
    let out = command
        .env("LD_LIBRARY_PATH", "/other")
        .output()
        .expect("run");
    assert_eq!(out.status.code(), Some(7));
    let printed = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(printed, format!("{}:/other\n", lib.display()));
    let out = tree.run(&["no-such-program"]).output().expect("run");
    assert_eq!(out.status.code(), Some(127));
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        err.starts_with("rocebud: no-such-program is not found"),
        "{err}"
    );
}

#[test]
fn a_captured_run_does_not_hang_on_the_daemon_it_started() {
    if !enter() {
        return;
    }
    let tree = Installation::new("capture");
    // The daemon must not hold the pipe.
    let start = std::time::Instant::now();
    let (ok, out, err) = output(&mut tree.run(&["--", "echo", "hello"]));
    assert!(ok, "{err}");
    assert_eq!(out, "hello\n");
    assert!(start.elapsed() < std::time::Duration::from_secs(3));
}

#[test]
fn the_shim_and_its_tree_are_given_where_the_shim_is_there() {
    if !enter() {
        return;
    }
    let tree = Installation::new("shim");
    let script = "cat $ROCEBUD_SYSFS/sys/class/infiniband/rb_lo/ports/1/state; \
                  test -c $ROCEBUD_SYSFS/dev/infiniband/uverbs0 && echo device; echo $LD_PRELOAD";
    let (_, out, _) = output(&mut tree.run(&["--", "sh", "-c", "echo -$ROCEBUD_SYSFS-"]));
    assert_eq!(out, "--\n");
    let shim = tree.0.join("lib/rocebud-shim.so");
    std::fs::write(&shim, "").expect("write");
    // The loader only grumbles about an empty file.
    let (ok, out, err) = output(&mut tree.run(&["--", "sh", "-c", script]));
    assert!(ok, "{err}");
    assert_eq!(out, format!("4: ACTIVE\ndevice\n{}\n", shim.display()));
}

#[test]
fn with_ns_the_tree_lies_where_the_kernels_would() {
    if !enter() {
        return;
    }
    let tree = Installation::new("ns");
    let script = "cat /sys/class/infiniband/rb_lo/ports/1/state; \
                  cat /sys/class/infiniband_verbs/uverbs0/device/numa_node; \
                  test -c /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0 && echo device; \
                  test -e /dev/null && test -d /sys/class/net && echo rest; id -u";
    let arguments = ["--ns", "--", "sh", "-c", script];
    let (ok, out, err) = output(&mut tree.run(&arguments));
    assert!(ok, "{err}");
    assert_eq!(out, "4: ACTIVE\n-1\ndevice\nrest\n0\n");
}

#[test]
fn with_ns_an_ordinary_user_keeps_his_number() {
    if !enter() {
        return;
    }
    let tree = Installation::new("ns-user");
    let script = "cat /sys/class/infiniband/rb_lo/ports/1/state; \
                  test -w /dev/infiniband/uverbs0 && echo device; id -u";
    let (ok, out, err) = output(as_nobody(
        &mut tree.run(&["--ns", "--", "sh", "-c", script]),
    ));
    assert!(ok, "{err}");
    assert_eq!(out, "4: ACTIVE\ndevice\n65534\n");
}

#[test]
fn an_incomplete_build_is_named() {
    let (ok, _, err) = output(&mut rocebud(&["run", "--", "true"]));
    assert!(!ok);
    assert!(err.contains("holds no libibverbs.so.1"), "{err}");
}

#[test]
fn status_without_a_daemon_says_what_to_do() {
    if !enter() {
        return;
    }
    let (ok, _, err) = output(&mut rocebud(&["status"]));
    assert!(!ok);
    assert!(
        err.starts_with("rocebud: no rocebud daemon runs in this network namespace"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1);
}

#[test]
fn status_shows_process_queue_pair_and_reason() {
    if !enter() {
        return;
    }
    let (process, ready) = actor("failed", None);
    let slot: u32 = ready
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("slot");
    let qpn = format!("{:#08x}", slot << 12 | 3);
    let (ok, out, err) = output(&mut rocebud(&["status"]));
    assert!(ok, "{err}");
    assert!(
        out.contains(&format!("Process {}", process.0.id())),
        "{out}"
    );
    assert!(out.contains(&format!("{qpn} failed")), "{out}");
    let (ok, out, err) = output(&mut rocebud(&["status", "--qp", &qpn]));
    assert!(ok, "{err}");
    assert!(out.contains("0x000011 at ::ffff:127.0.0.1"), "{out}");
    assert!(out.contains("IBV_WC_RETRY_EXC_ERR: no answer"), "{out}");
    let (ok, out, _) = output(&mut rocebud(&["status", "--json"]));
    assert!(ok);
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["processes"][0]["qps"][0]["qpn"], qpn.as_str());
    assert_eq!(json["processes"][0]["pid"], process.0.id());
    let (ok, _, err) = output(&mut rocebud(&["status", "--qp", "5"]));
    assert!(
        !ok && err.contains("no process here has or had queue pair 0x5"),
        "{err}"
    );
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    let out = rocebud(&["devices", "--nonsense"]).output().expect("run");
    assert_eq!(out.status.code(), Some(2));
    let (ok, out, _) = output(&mut rocebud(&["run", "--help"]));
    assert!(
        ok && out.contains("Examples:") && out.contains("Exit status:"),
        "{out}"
    );
}
