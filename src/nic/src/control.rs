//! Control messages as bytes, both ways.

use crate::sys::{Arrival, CONTROL_MAX, Envelope, NAME_MAX};

/// Bytes of `struct cmsghdr` (length word, level, type).
const CMSG_HEADER: usize = size_of::<usize>() + 8;

impl Envelope {
    /// An envelope with neither address nor control messages.
    pub(crate) const fn empty() -> Self {
        Self {
            control: [0; CONTROL_MAX],
            name: [0; NAME_MAX],
            name_len: 0,
            control_len: 0,
        }
    }

    /// Adds a control message. The few that we send fit; one that did not would be left out.
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let (start, len) = (self.control_len, CMSG_HEADER + data.len());
        let end = start + len.next_multiple_of(size_of::<usize>());
        let Some(room) = self.control.get_mut(start..end) else {
            return;
        };
        let (word, rest) = room.split_at_mut(size_of::<usize>());
        word.copy_from_slice(&len.to_ne_bytes());
        rest[..4].copy_from_slice(&level.to_ne_bytes());
        rest[4..8].copy_from_slice(&kind.to_ne_bytes());
        rest[8..8 + data.len()].copy_from_slice(data);
        self.control_len = end;
    }
}

impl Arrival {
    /// An arrival to be filled in.
    pub(crate) const fn empty() -> Self {
        Self {
            control: [0; CONTROL_MAX],
            name: [0; NAME_MAX],
            control_len: 0,
            len: 0,
            flags: 0,
        }
    }

    /// Hands each control message to `hear`: level, type, content.
    pub(crate) fn each_message(&self, mut hear: impl FnMut(i32, i32, &[u8])) {
        let mut rest = self.control.get(..self.control_len).unwrap_or(&[]);
        while rest.len() >= CMSG_HEADER {
            let len = usize::from_ne_bytes(take(rest, 0));
            let Some(data) = rest.get(CMSG_HEADER..len) else {
                break;
            };
            let level = i32::from_ne_bytes(take(rest, CMSG_HEADER - 8));
            let kind = i32::from_ne_bytes(take(rest, CMSG_HEADER - 4));
            hear(level, kind, data);
            rest = rest
                .get(len.next_multiple_of(size_of::<usize>())..)
                .unwrap_or(&[]);
        }
    }
}

/// `N` bytes at `at`; zeros where the kernel gave fewer.
pub(crate) fn take<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    data.get(at..at + N)
        .and_then(|bytes| bytes.try_into().ok())
        .unwrap_or([0; N])
}
