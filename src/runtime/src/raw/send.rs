//! Frames on their way out.

use rocebud_ctl::page::QpCount;
use rocebud_engine::{Env, LocalFault, Reason};
use rocebud_objects::{Counter, CqId, Errno, Instant, Payload, PdId};

use super::port::Port;
use super::qp::RawQp;
use super::recv::reason;
use crate::env::World;

/// Frames given to the kernel in one go.
const BATCH: usize = 16;
/// No interface takes longer ones: what 16 bits of length can say, an Ethernet header and two tags.
const FRAME_BYTES_MAX: u64 = 65_535 + 14 + 8;

/// What [`send`] did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) frames: usize,
    /// The interface had no room for the rest.
    pub(super) stuck: bool,
    /// When the rate limit lets the next one go.
    pub(super) due: Option<Instant>,
}

/// Sends until the queue is empty or the interface full. A request that cannot be sent completes
/// with an error and takes the queue pair to ERR.
pub(super) fn send(
    qp: &mut RawQp,
    port: &mut Port,
    failed: &mut Vec<CqId>,
    world: &mut World<'_>,
) -> Done {
    let mut done = Done::default();
    while qp.wants_send() {
        done.due = qp.pace.wait(world.now);
        if done.due.is_some() {
            break;
        }
        let bad = gather(qp, port, world);
        let frames = port.staged();
        if frames.is_empty() {
            if let Some(bad) = bad {
                qp.fail_send(bad, failed, world);
            }
            break;
        }
        let sent = match port.send(&frames) {
            Ok(sent) => sent,
            Err(errno) if [Errno::EAGAIN, ENOBUFS].contains(&errno) => {
                done.stuck = true;
                break;
            }
            Err(errno) if [EMSGSIZE, Errno::EINVAL].contains(&errno) => {
                qp.fail_send(Reason::FrameLength, failed, world);
                break;
            }
            // The interface is down: what a network card is told then is gone.
            Err(_) => {
                world.add(Counter::SendErr, 1);
                1
            }
        };
        done.frames += sent;
        for _ in 0..sent {
            world.add_to_qp(qp.qpn, QpCount::SentPkts);
            let bytes = qp.sends().next().map_or(0, |wr| wr.payload.len());
            qp.pace.take(world.now, bytes);
            qp.complete_send(failed, world);
        }
    }
    done
}

const ENOBUFS: Errno = Errno(105);
const EMSGSIZE: Errno = Errno(90);

/// Copies the frames at the front of the queue into the port's staging buffer, up to the first that
/// cannot be.
fn gather(qp: &RawQp, port: &mut Port, world: &mut World<'_>) -> Option<Reason> {
    port.unstage();
    let batch = if qp.pace.is_on() { 1 } else { BATCH };
    for wr in qp.sends().take(batch) {
        let len = wr.payload.len();
        let Some(len) = usize::try_from(len).ok().filter(|_| len <= FRAME_BYTES_MAX) else {
            return Some(Reason::FrameLength);
        };
        let copied = copy(world, qp.init.pd, &wr.payload, port.stage(len));
        if let Err(fault) = copied {
            port.unstage_last();
            return Some(reason(fault));
        }
    }
    None
}

fn copy(
    world: &mut World<'_>,
    pd: PdId,
    payload: &Payload,
    mut room: &mut [u8],
) -> Result<(), LocalFault> {
    match payload {
        Payload::Inline(bytes) => room.copy_from_slice(bytes),
        Payload::Sges(sges) => {
            for sge in sges.iter().filter(|sge| sge.length != 0) {
                let (piece, rest) = room.split_at_mut(sge.length as usize);
                world.read_local(pd, sge.lkey, sge.addr, piece)?;
                room = rest;
            }
        }
    }
    Ok(())
}
