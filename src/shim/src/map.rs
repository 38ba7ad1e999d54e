//! Which paths are redirected, and where to.

/// Longest path that is redirected; as `PATH_MAX`, with its NUL.
pub(crate) const PATH_MAX: usize = 4096;

const PREFIXES: [&[u8]; 2] = [b"/sys/class/infiniband", b"/dev/infiniband"];

/// The path is one that the tree stands in for. `byte(i)` gives the path's bytes, NUL at its end,
/// and is not asked for more after one that does not fit.
pub(crate) fn is_redirected(byte: impl Fn(usize) -> u8) -> bool {
    PREFIXES.iter().any(|prefix| {
        let same = prefix.iter().enumerate().all(|(i, b)| byte(i) == *b);
        // "/sys/class/infiniband_verbs" too, but not "/dev/infinibandx".
        same && matches!(byte(prefix.len()), 0 | b'/' | b'_')
    })
}

/// Writes root + path + NUL; false where it does not fit.
pub(crate) fn join(root: &[u8], path: &[u8], out: &mut [u8; PATH_MAX]) -> bool {
    let end = root.len() + path.len();
    let (Some(head), true) = (out.get_mut(..root.len()), end < PATH_MAX) else {
        return false;
    };
    head.copy_from_slice(root);
    out[root.len()..end].copy_from_slice(path);
    out[end] = 0;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected(path: &str) -> bool {
        is_redirected(|i| path.as_bytes().get(i).copied().unwrap_or(0))
    }

    #[test]
    fn only_infiniband_paths_are_redirected() {
        for path in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband/rb_lo/ports/1/state",
            "/sys/class/infiniband_verbs/uverbs0/ibdev",
            "/dev/infiniband/uverbs0",
            "/dev/infiniband",
        ] {
            assert!(redirected(path), "{path}");
        }
        for path in [
            "",
            "/",
            "/sys/class/infinibandx",
            "/sys/class/infini",
            "/dev/null",
            "sys/class/infiniband",
            "/tmp/sys/class/infiniband",
        ] {
            assert!(!redirected(path), "{path}");
        }
    }

    #[test]
    fn a_joined_path_ends_with_nul_and_one_too_long_is_left_alone() {
        let mut out = [0xff; PATH_MAX];
        assert!(join(b"/tree", b"/dev/infiniband", &mut out));
        assert_eq!(&out[..21], b"/tree/dev/infiniband\0");
        let long = [b'a'; PATH_MAX - 5];
        assert!(!join(b"/tree", &long, &mut out));
        assert!(join(b"/tree", &long[..PATH_MAX - 6], &mut out));
        assert_eq!(out[PATH_MAX - 1], 0);
    }
}
