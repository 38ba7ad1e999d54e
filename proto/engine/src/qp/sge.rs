//! Bytes between packets and scatter/gather lists.

use rocebud_objects::{Payload, PdId, Sge};

use crate::env::{Env, LocalFault};

/// Walks the pieces of `sges` that cover `len` bytes from `offset`: (key entry, address, position
/// in the packet, bytes). Entries of length 0 are skipped unchecked. Returns bytes covered.
fn pieces(
    sges: &[Sge],
    offset: u64,
    len: usize,
    mut each: impl FnMut(&Sge, u64, usize, usize) -> Result<(), LocalFault>,
) -> Result<usize, LocalFault> {
    let mut skip = offset;
    let mut done = 0;
    for sge in sges {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            continue;
        }
        if done == len {
            break;
        }
        let room = usize::try_from(length - skip).unwrap_or(usize::MAX);
        let n = room.min(len - done);
        each(sge, sge.addr.wrapping_add(skip), done, n)?;
        done += n;
        skip = 0;
    }
    Ok(done)
}

/// Fills `dst` with the message's bytes from `offset` on.
pub(crate) fn gather<E: Env>(
    env: &mut E,
    pd: PdId,
    payload: &Payload,
    offset: u64,
    dst: &mut [u8],
) -> Result<(), LocalFault> {
    let len = dst.len();
    match payload {
        Payload::Inline(bytes) => {
            let from = usize::try_from(offset).map_err(|_| LocalFault::Bounds)?;
            let src = bytes
                .get(from..)
                .and_then(|b| b.get(..len))
                .ok_or(LocalFault::Bounds)?;
            dst.copy_from_slice(src);
            Ok(())
        }
        Payload::Sges(sges) => {
            let done = pieces(sges, offset, len, |sge, addr, at, n| {
                let piece = dst.get_mut(at..at + n).ok_or(LocalFault::Bounds)?;
                env.read_local(pd, sge.lkey, addr, piece)
            })?;
            if done == len {
                Ok(())
            } else {
                Err(LocalFault::Bounds)
            }
        }
    }
}

/// Writes `src` into the list at `offset`.
pub(crate) fn scatter<E: Env>(
    env: &mut E,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    src: &[u8],
) -> Result<(), LocalFault> {
    let done = pieces(sges, offset, src.len(), |sge, addr, at, n| {
        let piece = src.get(at..at + n).ok_or(LocalFault::Bounds)?;
        env.write_local(pd, sge.lkey, addr, piece)
    })?;
    if done == src.len() {
        Ok(())
    } else {
        Err(LocalFault::Bounds)
    }
}

/// Checks the whole list without touching memory.
pub(crate) fn check<E: Env>(
    env: &E,
    pd: PdId,
    sges: &[Sge],
    write: bool,
) -> Result<(), LocalFault> {
    sges.iter()
        .filter(|sge| sge.length != 0)
        .try_for_each(|sge| env.check_local(pd, sge.lkey, sge.addr, u64::from(sge.length), write))
}

/// Total bytes of a list, in 64 bits.
pub(crate) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}
