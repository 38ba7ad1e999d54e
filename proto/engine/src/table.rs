//! Queue pairs by number: a slab, and a dense table per slot of 4096 numbers.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use rocebud_wire::Qpn;

use crate::qp::Qp;
use crate::ready::Index;

const SLOT_QPNS: usize = 4096;

/// A process owns one slot or a few, so the slots are searched one after the other.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    slab: Vec<Option<Box<Qp>>>,
    free: Vec<Index>,
    /// Index + 1 in the slab; 0 = nobody.
    slots: Vec<(u16, Box<[u32]>)>,
}

impl QpTable {
    pub(crate) fn index(&self, qpn: Qpn) -> Option<Index> {
        let (_, table) = self.slots.iter().find(|(slot, _)| *slot == qpn.slot())?;
        let entry = table.get(qpn.value() as usize % SLOT_QPNS)?;
        entry.checked_sub(1)
    }

    fn entry(&mut self, qpn: Qpn) -> Option<&mut u32> {
        if !self.slots.iter().any(|(slot, _)| *slot == qpn.slot()) {
            self.slots
                .push((qpn.slot(), vec![0; SLOT_QPNS].into_boxed_slice()));
        }
        let (_, table) = self
            .slots
            .iter_mut()
            .find(|(slot, _)| *slot == qpn.slot())?;
        table.get_mut(qpn.value() as usize % SLOT_QPNS)
    }

    /// The place that the next insertion takes.
    pub(crate) fn next_index(&self) -> Index {
        self.free
            .last()
            .copied()
            .unwrap_or_else(|| u32::try_from(self.slab.len()).unwrap_or(0))
    }

    /// Inserts at [`QpTable::next_index`]. The number must be free.
    pub(crate) fn insert(&mut self, qp: Qp) {
        let index = self.next_index();
        if let Some(entry) = self.entry(qp.qpn) {
            *entry = index + 1;
        }
        let qp = Some(Box::new(qp));
        if self.free.pop().is_some()
            && let Some(place) = self.slab.get_mut(index as usize)
        {
            *place = qp;
        } else {
            self.slab.push(qp);
        }
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Box<Qp>> {
        let index = self.index(qpn)?;
        if let Some(entry) = self.entry(qpn) {
            *entry = 0;
        }
        self.free.push(index);
        self.slab.get_mut(index as usize)?.take()
    }

    pub(crate) fn at(&self, index: Index) -> Option<&Qp> {
        self.slab.get(index as usize)?.as_deref()
    }

    pub(crate) fn at_mut(&mut self, index: Index) -> Option<&mut Qp> {
        self.slab.get_mut(index as usize)?.as_deref_mut()
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Qp> {
        self.at(self.index(qpn)?)
    }

    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        let index = self.index(qpn)?;
        self.at_mut(index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.slab.iter().filter_map(Option::as_deref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.slab.iter_mut().filter_map(Option::as_deref_mut)
    }
}
