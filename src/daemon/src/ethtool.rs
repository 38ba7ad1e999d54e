//! What interfaces say of themselves by ethtool's ioctl: their speed, and whether they take a batch of
//! packets as one. Needs no right.

#![allow(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Asks interfaces, by their names.
pub(crate) trait AskInterface {
    /// Mbit/s, if it knows.
    fn speed_mbps(&self, name: &str) -> Option<u32>;

    /// It takes UDP packets of one length for one destination as one (`tx-udp-segmentation`).
    fn takes_udp_batches(&self, name: &str) -> bool;
}

/// Asks the kernel.
#[derive(Debug)]
pub(crate) struct Ethtool {
    socket: OwnedFd,
    /// The kernel's number of `tx-udp-segmentation`.
    udp_segmentation: Option<usize>,
}

/// Bytes of the name of a feature.
const NAME_BYTES: usize = 32;

/// Features that a kernel may have. Linux 6.18 has 64 at most.
const FEATURES_MAX: usize = 1024;

impl Ethtool {
    pub(crate) fn new() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
        let mut new = Self {
            socket: socket_with(family, kind, SocketFlags::CLOEXEC, None)?,
            udp_segmentation: None,
        };
        // The names are the same for all interfaces, and every namespace has this one.
        let names = new.feature_names("lo").unwrap_or_default();
        new.udp_segmentation = names.iter().position(|name| name == "tx-udp-segmentation");
        Ok(new)
    }

    /// The names of the features that interfaces of this kernel may have.
    fn feature_names(&self, name: &str) -> Option<Vec<String>> {
        const SSET_INFO: u32 = 0x37;
        const STRINGS: u32 = 0x1b;
        const SET_OF_FEATURES: u32 = 4;
        // struct ethtool_sset_info: command, reserved, a mask of 64 bits, then the number for each bit.
        let mut info = [SSET_INFO, 0, 0, 0, 0];
        let mask = (1_u64 << SET_OF_FEATURES).to_ne_bytes();
        let (low, high) = mask.split_at(4);
        info[2] = u32::from_ne_bytes(low.try_into().ok()?);
        info[3] = u32::from_ne_bytes(high.try_into().ok()?);
        self.ask(name, &mut info)?;
        let count = usize::try_from(info[4])
            .ok()
            .filter(|n| *n <= FEATURES_MAX)?;
        // struct ethtool_gstrings: command, set, number, then the names. The kernel fills in as many as it has.
        let mut words = vec![0; 3 + FEATURES_MAX * NAME_BYTES / 4];
        words[..2].copy_from_slice(&[STRINGS, SET_OF_FEATURES]);
        self.ask(name, &mut words)?;
        let bytes: Vec<u8> = words[3..]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        let names = bytes.chunks(NAME_BYTES).take(count);
        let text = |name: &[u8]| {
            name.iter()
                .take_while(|b| **b != 0)
                .map(|b| char::from(*b))
                .collect()
        };
        Some(names.map(text).collect())
    }

    /// One question; the command is its first word, and the kernel writes no more words than there are.
    fn ask(&self, name: &str, words: &mut [u32]) -> Option<()> {
        const SIOCETHTOOL: u32 = 0x8946;
        // SAFETY: ifreq is plain data for which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        let fd = self.socket.as_raw_fd();
        // SAFETY: request names a terminated interface name and a buffer of the size that its command
        // fills; both outlive the call.
        let rc = unsafe { libc::ioctl(fd, SIOCETHTOOL as _, &raw mut request) };
        (rc == 0).then_some(())
    }
}

impl AskInterface for Ethtool {
    fn speed_mbps(&self, name: &str) -> Option<u32> {
        const GSET: u32 = 0x1;
        const UNKNOWN: u32 = u32::MAX;
        // struct ethtool_cmd: command first, speed (lower half) at byte 12, upper at 28; 44 bytes.
        let mut words = [0_u32; 11];
        words[0] = GSET;
        self.ask(name, &mut words)?;
        let speed = (words[7] & 0xffff) << 16 | words[3] & 0xffff;
        (speed != 0 && speed != UNKNOWN && speed != 0xffff).then_some(speed)
    }

    fn takes_udp_batches(&self, name: &str) -> bool {
        const FEATURES: u32 = 0x3a;
        const BLOCKS: usize = FEATURES_MAX / 32;
        // struct ethtool_gfeatures: command, number of blocks of 32 features, then for each block what is
        // available, wanted, active, and never changed.
        let mut words = [0_u32; 2 + BLOCKS * 4];
        words[..2].copy_from_slice(&[FEATURES, BLOCKS as u32]);
        let Some(bit) = self.udp_segmentation else {
            return false;
        };
        let active = |words: &[u32]| words.get(2 + bit / 32 * 4 + 2).copied().unwrap_or(0);
        self.ask(name, &mut words).is_some() && active(&words) >> (bit % 32) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_the_feature_and_loopback_has_it() {
        let ethtool = Ethtool::new().unwrap();
        let names = ethtool.feature_names("lo").unwrap();
        assert!(names.len() > 32, "{names:?}");
        assert!(ethtool.udp_segmentation.is_some(), "{names:?}");
        assert!(ethtool.takes_udp_batches("lo"));
        assert!(!ethtool.takes_udp_batches("no such one"));
        assert_eq!(ethtool.speed_mbps("a name that is too long for one"), None);
    }
}
