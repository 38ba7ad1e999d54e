//! Names that one process of a network namespace may hold at a time.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// A name that is ours until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Claim {
    /// An abstract socket: it leaves no file behind, needs no right, and belongs to the namespace.
    _socket: UnixListener,
}

impl Claim {
    /// Takes a name.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`]: another process (or another claim of ours) has it.
    pub fn take(name: &str) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(format!("rocebud-{name}"))?;
        let socket = UnixListener::bind_addr(&address)?;
        Ok(Self { _socket: socket })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_once_and_free_again_afterwards() {
        let name = format!("claim-test-{}", std::process::id());
        let held = Claim::take(&name).unwrap();
        let refused = Claim::take(&name).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(held);
        Claim::take(&name).unwrap();
    }
}
