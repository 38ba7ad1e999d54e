//! Cases by their numbers: behaviours that users of RDMA stacks have tripped over.

use rocebud_objects::{SendOp, WcStatus};

use crate::pair::{Pair, START, sge, wr};

mod hostile;
mod life;
mod requests;
mod transport;

/// A part of the region that is not where transfers begin.
const FAR: u64 = START + 0x10_0000;
const OK: WcStatus = WcStatus::Success;

/// A SEND each way, which must work.
fn ping_pong(pair: &mut Pair, id: u64) {
    for side in 0..2 {
        pair.recv(1 - side, id, &[sge(FAR, 2000)]).unwrap();
        pair.post(side, wr(id, SendOp::Send, &[sge(START, 2000)]))
            .unwrap();
    }
    pair.run();
    for side in 0..2 {
        assert_eq!(pair.results(side), [(id, OK), (id, OK)]);
    }
}
