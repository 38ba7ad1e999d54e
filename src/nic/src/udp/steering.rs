//! Which socket of the group gets a frame.

use std::io;
use std::os::fd::BorrowedFd;

/// Most group positions that one program can tell apart, however scattered the slots.
pub const SLOTS_MAX: usize = 800;

/// Makes the reuseport group of `fd` choose by `destination QPN >> 12`. `slots[i]` is the slot
/// served by the socket at group position `i` (the order of binding). Frames of other slots, and
/// frames too short to have a QPN, go to position 0. Replaces the earlier program of the group.
pub fn attach_steering(_fd: BorrowedFd<'_>, _slots: &[u16]) -> io::Result<()> {
    todo!()
}
