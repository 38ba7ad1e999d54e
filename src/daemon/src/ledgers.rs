//! The ledgers: one per user, of what is on its way to each of his processes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rocebud_ctl::Ledger;

/// Every user's ledger, made when it is first asked for.
#[derive(Debug, Default)]
pub(crate) struct Ledgers(BTreeMap<u32, (Ledger, OwnedFd)>);

impl Ledgers {
    /// The file of a user's ledger.
    pub(crate) fn file(&mut self, uid: u32) -> io::Result<BorrowedFd<'_>> {
        self.of(uid).map(|(_, fd)| fd.as_fd())
    }

    /// A process of `uid` has got a slot.
    pub(crate) fn open(&mut self, uid: u32, slot: u16, buffer_bytes: u32) {
        // Without a ledger its neighbours know nothing of its buffer, as if they were elsewhere.
        if let Ok((ledger, _)) = self.of(uid)
            && let Some(line) = ledger.line(slot)
        {
            line.open(buffer_bytes);
        }
    }

    /// It has it no more.
    pub(crate) fn close(&self, uid: u32, slot: u16) {
        let ledger = self.0.get(&uid);
        if let Some(line) = ledger.and_then(|(ledger, _)| ledger.line(slot)) {
            line.close();
        }
    }

    fn of(&mut self, uid: u32) -> io::Result<&(Ledger, OwnedFd)> {
        use std::collections::btree_map::Entry;
        Ok(match self.0.entry(uid) {
            Entry::Occupied(place) => place.into_mut(),
            Entry::Vacant(place) => place.insert(Ledger::create()?),
        })
    }
}
