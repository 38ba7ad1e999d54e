//! Whether a socket in the file system belongs to this network namespace.
//!
//! A file system is often shared by many network namespaces, and a daemon of another one is found
//! at the same path. The kernel's table of unix sockets shows those of one namespace only, so it
//! tells without asking a daemon that may be slow to answer.

use std::path::Path;

/// Somebody of this network namespace listens at `path`. True too where that cannot be known.
pub(super) fn listens_here(path: &Path) -> bool {
    let table = ["/proc/thread-self/net/unix", "/proc/self/net/unix"];
    let mut tables = table.iter().filter_map(|t| std::fs::read(t).ok());
    tables.next().is_none_or(|table| is_listed(&table, path))
}

fn is_listed(table: &[u8], path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let path = path.as_os_str().as_bytes();
    table.split(|byte| *byte == b'\n').any(|row| {
        row.strip_suffix(path)
            .is_some_and(|rest| rest.ends_with(b" ") && is_listening(rest))
    })
}

/// The fourth column holds the flags; the kernel shows `__SO_ACCEPTCON` there.
fn is_listening(row: &[u8]) -> bool {
    const ACCEPTCON: u32 = 0x1_0000;
    let flags = std::str::from_utf8(row)
        .ok()
        .and_then(|row| row.split_ascii_whitespace().nth(3));
    flags
        .and_then(|flags| u32::from_str_radix(flags, 16).ok())
        .is_some_and(|flags| flags & ACCEPTCON != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000000000000000: 00000002 00000000 00010000 0005 01 24601 /run/rocebud/control\n\
        0000000000000000: 00000003 00000000 00000000 0005 03 24602 /run/other\n\
        0000000000000000: 00000003 00000000 00000000 0001 03 24603\n";

    #[test]
    fn only_a_listening_socket_of_that_very_path_counts() {
        assert!(is_listed(TABLE, Path::new("/run/rocebud/control")));
        for path in [
            "/run/other",
            "run/rocebud/control",
            "control",
            "/nowhere",
            "",
        ] {
            assert!(!is_listed(TABLE, Path::new(path)), "{path}");
        }
    }
}
