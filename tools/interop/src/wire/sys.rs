//! Taps: an interface of the kernel whose frames a program reads and writes.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use crate::error::{Doing, Result, fail};

/// Makes a tap of this name in the network namespace of the calling thread. It is gone when the file is closed.
///
/// # Errors
/// `/dev/net/tun` is missing or refuses (it needs root).
pub(crate) fn tap(name: &str) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .doing(|| "/dev/net/tun (a tap needs root and the tun driver)".into())?;
    let Some(ifr_name) = interface_name(name) else {
        return fail(format!("{name}: too long for an interface"));
    };
    let flags = i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI).unwrap_or_default();
    let mut request = libc::ifreq {
        ifr_name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags },
    };
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives across the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if done < 0 {
        return Err(std::io::Error::last_os_error()).doing(|| format!("making the tap {name}"));
    }
    Ok(file)
}

fn interface_name(name: &str) -> Option<[libc::c_char; libc::IFNAMSIZ]> {
    let mut out = [0; libc::IFNAMSIZ];
    if name.len() >= out.len() {
        return None;
    }
    for (to, from) in out.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Some(out)
}
