//! What the engine asks of the world: memory behind keys, completion queues, counters.
//!
//! The runtime implements [`Env`] over real memory, the fabric over a model. Addresses are plain
//! numbers here; the engine never dereferences one.

use rocebud_objects::{
    Access, AsyncEvent, AtomicOp, BindFault, Counter, CqId, InvalidateFault, MwBind, Note, PdId, Wc,
};
pub use rocebud_objects::{LocalFault, RemoteFault, Scope};
use rocebud_wire::{Gid, LKey, Qpn, RKey};

/// The completion queue was full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqOverrun;

/// The world as the engine sees it. Every access is checked anew: a region may vanish between two
/// packets of one message.
pub trait Env {
    /// Checks a local range without touching it. `write` = it will be written.
    fn check_local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len: u64,
        write: bool,
    ) -> Result<(), LocalFault>;

    /// Checks a remote range without touching it.
    fn check_remote(
        &self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(), RemoteFault>;

    /// Copies out of local memory (gather of a send, write or receive).
    fn read_local(
        &mut self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), LocalFault>;

    /// Copies into local memory (receive, READ response, atomic result).
    fn write_local(
        &mut self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), LocalFault>;

    /// Copies out of memory that the peer named (READ).
    fn read_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), RemoteFault>;

    /// Copies into memory that the peer named (WRITE), in ascending address order.
    fn write_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        src: &[u8],
    ) -> Result<(), RemoteFault>;

    /// One atomic on eight aligned bytes; returns the value before. Needs `REMOTE_ATOMIC`.
    fn atomic_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, RemoteFault>;

    /// Writes eight aligned bytes in one piece. Needs `REMOTE_WRITE`.
    fn atomic_write_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        value: [u8; 8],
    ) -> Result<(), RemoteFault>;

    /// Makes earlier writes visible or persistent. `len` is ignored when `whole_region`.
    /// Needs `FLUSH_GLOBAL` and/or `FLUSH_PERSISTENT` as `placement` asks.
    fn flush_remote(
        &mut self,
        scope: Scope,
        rkey: RKey,
        va: u64,
        len: u64,
        whole_region: bool,
        placement: u8,
    ) -> Result<(), RemoteFault>;

    /// Invalidates a key, named by the peer (SEND with invalidate) or by LOCAL_INV. Ordinary
    /// regions and type 1 windows refuse.
    fn invalidate(&mut self, scope: Scope, rkey: RKey) -> Result<(), InvalidateFault>;

    /// Binds a memory window.
    fn bind_window(&mut self, scope: Scope, bind: &MwBind) -> Result<(), BindFault>;

    /// Takes back a bind whose request did not succeed after all: if the window still has this
    /// key, it shows nothing any more.
    fn unbind_window(&mut self, rkey: RKey);

    /// The queue pair is gone or starts anew: windows bound to it show nothing any more.
    fn release_windows(&mut self, qpn: Qpn);

    /// Delivers a completion. `solicited` = it counts for a solicited-only arm (error completions
    /// always do, whatever this says). On an overrun the engine raises `CQ_ERR` once and takes the
    /// attached queue pairs down; the world only refuses.
    fn complete(&mut self, cq: CqId, wc: Wc, solicited: bool) -> Result<(), CqOverrun>;

    /// Is there room for a packet of `bytes` in the buffer of a peer process, as far as the world
    /// knows? Asked before a packet of any service is made, but not for the only packet that a
    /// reliable queue pair has in flight. When refused, the queue pair is held until
    /// [`Node::retry_held`](crate::Node::retry_held), or until its ACK timer runs out while nothing in
    /// flight asks for an ACK: then the packet leaves all the same, with AckReq.
    fn has_room(&mut self, to: Gid, slot: u16, bytes: u64) -> bool {
        let _ = (to, slot, bytes);
        true
    }

    /// Is it known that a peer process has not yet read all that was sent to it? Then a missing
    /// answer is no sign of loss.
    fn is_behind(&mut self, to: Gid, slot: u16) -> bool {
        let _ = (to, slot);
        false
    }

    /// Raises an asynchronous event.
    fn event(&mut self, event: AsyncEvent);

    /// Adds to a counter.
    fn count(&mut self, counter: Counter, n: u64);

    /// Adds a line to a queue pair's story.
    fn note(&mut self, qpn: Qpn, note: Note);
}
