//! Numbers that tell this host from others.

/// The same in all network namespaces of this kernel, until it is booted again: its boot identifier, folded,
/// so that nobody gets it back. 0 where there is none.
pub(crate) fn kernel_number() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    folded(&id)
}

fn folded(uuid: &str) -> u64 {
    let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).unwrap_or(0);
    (number >> 64) as u64 ^ number as u64
}

/// A number that differs from host to host and stays.
pub(crate) fn salt() -> u64 {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let name = rustix::system::uname();
    let id = if id.trim().is_empty() {
        name.nodename().to_bytes()
    } else {
        id.trim().as_bytes()
    };
    id.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| {
        (hash ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_one_number_and_what_is_no_identifier_none() {
        assert_ne!(kernel_number(), 0);
        assert_eq!(kernel_number(), kernel_number());
        let id = "01234567-89ab-cdef-0000-00000000000f\n";
        assert_eq!(folded(id), 0x0123_4567_89ab_cde0);
        for none in ["", "\n", "nothing", "00000000-0000-0000-0000-000000000000"] {
            assert_eq!(folded(none), 0, "{none}");
        }
        let long = "f".repeat(33);
        assert_eq!(folded(&long), 0);
    }
}
