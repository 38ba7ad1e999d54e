//! Variables with values that mean nothing: never passed over in silence, never in the way.

use std::process::Command;

use crate::world::{enter, one_line, output, rocebud, status};

/// `rocebud devices` with a variable.
fn devices(variable: &str, value: &str) -> Command {
    let mut command = rocebud(&["devices"]);
    command.env(variable, value);
    command
}

/// The daemon is started all the same; starter and `rocebud status` say this of it.
fn starts_with_a_remark(variable: &str, value: &str, remark: &str) {
    let (ok, out, err) = output(&mut devices(variable, value));
    assert!(ok && out.contains("rb_lo"), "{variable}={value}: {err}");
    assert!(err.contains(remark), "{variable}={value}: {err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    let (ok, out, err) = output(&mut rocebud(&["status"]));
    assert!(ok, "{err}");
    assert!(
        one_line(&out).contains(&format!("Note: {}", err_line(remark))),
        "{out}"
    );
    // Who finds it running has not caused anything.
    let (_, _, err) = output(&mut devices(variable, value));
    assert_eq!(err, "");
}

fn err_line(remark: &str) -> &str {
    remark.strip_prefix("rocebud: ").unwrap_or(remark)
}

#[test]
fn a_daemon_whose_log_cannot_be_written_runs_and_says_so() {
    if !enter() {
        return;
    }
    starts_with_a_remark(
        "ROCEBUD_DAEMON_LOG",
        "/no/such/directory/log",
        "rocebud: the daemon runs without a log: ROCEBUD_DAEMON_LOG names \
         /no/such/directory/log, which cannot be written to (No such file",
    );
}

#[test]
fn a_receive_buffer_that_is_no_number_is_the_usual_one_and_said() {
    if !enter() {
        return;
    }
    starts_with_a_remark(
        "ROCEBUD_RCVBUF",
        "64M",
        "rocebud: ROCEBUD_RCVBUF is \"64M\", which counts as not set: it wants a number of bytes",
    );
    assert!(status().rcvbuf_bytes > 1 << 20, "{:?}", status());
}

#[test]
fn a_receive_buffer_that_is_too_large_a_number_is_told_the_largest() {
    if !enter() {
        return;
    }
    starts_with_a_remark(
        "ROCEBUD_RCVBUF",
        "4294967296",
        "rocebud: ROCEBUD_RCVBUF is \"4294967296\", which counts as not set: it wants a number of \
         bytes, digits only, at most 4294967295",
    );
}

#[test]
fn a_receive_buffer_is_as_large_as_asked_for() {
    if !enter() {
        return;
    }
    let (ok, _, err) = output(&mut devices("ROCEBUD_RCVBUF", "65536"));
    assert!(ok && err.is_empty(), "{err}");
    assert_eq!(status().rcvbuf_bytes, 65536);
}

#[test]
fn a_level_of_log_that_is_none_is_named_by_a_daemon_in_the_foreground() {
    if !enter() {
        return;
    }
    let mut command = rocebud(&["daemon", "--socket", "/"]);
    let (ok, _, err) = output(command.env("ROCEBUD_LOG", "bogus"));
    assert!(!ok);
    assert!(err.contains("preparing the control socket /"), "{err}");
    assert!(
        err.contains("ROCEBUD_LOG is \"bogus\"") && err.contains("off, error, warn, info or debug"),
        "{err}"
    );
}

#[test]
fn a_socket_name_that_cannot_be_one_is_named_with_its_variable() {
    if !enter() {
        return;
    }
    let long = format!("/tmp/{}", "x".repeat(108));
    for (name, why) in [
        (long.as_str(), "at most 107 bytes fit"),
        ("@", "@ is no socket name: give a path, or @NAME"),
    ] {
        let (ok, _, err) = output(&mut devices("ROCEBUD_SOCKET", name));
        assert!(!ok);
        assert!(
            err.starts_with("rocebud: ROCEBUD_SOCKET: ") && err.contains(why),
            "{err}"
        );
        assert_eq!(err.lines().count(), 1, "{err}");
        let (ok, _, err) = output(&mut rocebud(&["daemon", "--socket", name]));
        assert!(!ok && err.contains(why), "{err}");
    }
}

#[test]
fn a_relative_socket_name_is_looked_for_from_the_working_directory() {
    if !enter() {
        return;
    }
    let mut command = devices("ROCEBUD_SOCKET", "sub/control");
    let (ok, _, err) = output(command.current_dir("/var"));
    assert!(!ok);
    assert!(
        err.starts_with(
            "rocebud: no rocebud daemon answers at sub/control (seen from /var), which ROCEBUD_SOCKET"
        ),
        "{err}"
    );
}

#[test]
fn a_daemon_program_that_cannot_be_run_is_named_with_its_variable() {
    if !enter() {
        return;
    }
    for (program, why) in [
        (
            "/etc/passwd",
            "starting /etc/passwd, which ROCEBUD_DAEMON names: Permission denied",
        ),
        ("/etc", "ROCEBUD_DAEMON names /etc, which is no file"),
    ] {
        let (ok, _, err) = output(&mut devices("ROCEBUD_DAEMON", program));
        assert!(!ok && err.contains(why), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}
