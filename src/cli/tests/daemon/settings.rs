//! Variables with values that mean nothing: never passed over in silence, never in the way.

use std::process::Command;

use crate::world::{as_nobody, enter, one_line, output, rocebud, status};

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

const NO_LOG: &str = "rocebud: the daemon runs without a log: ROCEBUD_DAEMON_LOG names ";
const BYTES: &str = "which counts as not set: it wants a number of bytes from 16384 to \
                     2147483646, digits only";
const SWITCH: &str = "which counts as not set: it wants on or off";

#[test]
fn a_daemon_tells_of_each_value_that_means_nothing() {
    for (variable, value, remark) in [
        (
            "ROCEBUD_DAEMON_LOG",
            "/no/such/directory/log",
            format!("{NO_LOG}/no/such/directory/log, which cannot be written to (No such file"),
        ),
        (
            "ROCEBUD_DAEMON_LOG",
            "/",
            format!("{NO_LOG}/, which cannot be written to (Is a directory"),
        ),
        ("ROCEBUD_RCVBUF", "64M", String::new()),
        ("ROCEBUD_RCVBUF", "-1", String::new()),
        ("ROCEBUD_RCVBUF", " 65536", String::new()),
        ("ROCEBUD_RCVBUF", "0", String::new()),
        ("ROCEBUD_RCVBUF", "1", String::new()),
        ("ROCEBUD_RCVBUF", "16383", String::new()),
        ("ROCEBUD_RCVBUF", "2147483647", String::new()),
        ("ROCEBUD_RCVBUF", "4294967296", String::new()),
        ("ROCEBUD_RING", "0", String::new()),
        ("ROCEBUD_RING", "OFF", String::new()),
    ] {
        if !enter() {
            return;
        }
        let expected = if variable == "ROCEBUD_RING" {
            SWITCH
        } else {
            BYTES
        };
        let complaint = format!("rocebud: {variable} is {value:?}, {expected}");
        let remark = if remark.is_empty() { complaint } else { remark };
        starts_with_a_remark(variable, value, &remark);
        let status = status();
        assert!(status.rcvbuf_bytes > 1 << 20, "{value}: {status:?}");
        assert_eq!(status.no_rings, None, "{value}");
    }
}

#[test]
fn a_daemon_has_nothing_to_say_of_variables_that_are_empty_or_right() {
    for (variable, value) in [
        ("ROCEBUD_DAEMON_LOG", ""),
        ("ROCEBUD_DAEMON_LOG", "/dev/null"),
        ("ROCEBUD_RCVBUF", ""),
        ("ROCEBUD_RCVBUF", "16384"),
        ("ROCEBUD_RCVBUF", "16385"),
        ("ROCEBUD_RCVBUF", "2147483646"),
        ("ROCEBUD_RING", ""),
        ("ROCEBUD_RING", "on"),
        ("ROCEBUD_RING", "off"),
        ("ROCEBUD_DAEMON", ""),
        ("ROCEBUD_SOCKET", ""),
    ] {
        if !enter() {
            return;
        }
        let (ok, out, err) = output(&mut devices(variable, value));
        assert!(ok && out.contains("rb_lo"), "{variable}={value}: {err}");
        assert_eq!(err, "", "{variable}={value}");
        assert!(status().remarks.is_empty(), "{variable}={value}");
    }
}

#[test]
fn a_receive_buffer_that_its_user_may_not_have_is_told_with_the_most() {
    if !enter() {
        return;
    }
    let mut command = devices("ROCEBUD_RCVBUF", "2000000000");
    let (ok, _, err) = output(as_nobody(&mut command));
    assert!(ok, "{err}");
    let beginning = "rocebud: ROCEBUD_RCVBUF is \"2000000000\", and receive buffers have ";
    let end = " bytes, the most that this user may have (sysctl net.core.rmem_max)\n";
    let bytes = err
        .strip_prefix(beginning)
        .and_then(|e| e.strip_suffix(end));
    let bytes: u32 = bytes.and_then(|b| b.parse().ok()).expect(&err);
    let (_, out, err) = output(as_nobody(&mut rocebud(&["status", "--json"])));
    assert!(
        out.contains(&format!("\"rcvbuf_bytes\": {bytes},")),
        "{out}{err}"
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
