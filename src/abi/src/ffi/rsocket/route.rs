//! `RDMA_ROUTE`: paths of the program's own, which take the place of a look-up.

use core::ffi::c_int;

use rocebud_objects::Misuse;
use rocebud_rsocket::options::Phase;

use super::super::boundary::Outcome;
use super::super::cm::resolve::path_data;
use super::socket::Inner;
use super::verbs;

/// Bytes of paths that are kept: more than the six that an answer of a subnet administrator has.
const LEN_MAX: usize = 4096;

/// Keeps paths for `rconnect`, which tells if they are none. EINVAL: a connection is begun, or too many.
pub(super) fn set(inner: &mut Inner, value: &[u8], phase: Phase) -> Outcome<c_int> {
    const LATE: Misuse = Misuse::invalid("RDMA_ROUTE: a connection is begun");
    const LONG: Misuse = Misuse::invalid("RDMA_ROUTE: between 1 and 4096 bytes of paths");
    if phase == Phase::Begun {
        return Err(LATE);
    }
    if value.is_empty() || value.len() > LEN_MAX {
        return Err(LONG);
    }
    inner.route = value.to_vec();
    Ok(0)
}

/// The program's paths, or the one that was found, in the form in which it can be set; else nothing.
/// EINVAL: there is not enough room.
pub(super) fn get(inner: &Inner, room: usize) -> Outcome<Vec<u8>> {
    const SHORT: Misuse = Misuse::invalid("RDMA_ROUTE: room for whole paths");
    // SAFETY: a living identifier.
    let route = unsafe { (*inner.id).route };
    let found = match (inner.route.is_empty(), route.path_rec.is_null()) {
        (false, _) => inner.route.clone(),
        // SAFETY: one record at least, which lives as long as the identifier.
        (true, false) => path_data(&unsafe { route.path_rec.read() }).to_vec(),
        (true, true) => return Ok(Vec::new()),
    };
    if room < found.len() {
        return Err(SHORT);
    }
    Ok(found)
}

/// Asks for a route, or takes the program's.
pub(super) fn resolve(inner: &mut Inner, timeout_ms: c_int) -> Outcome<()> {
    /// `RDMA_OPTION_IB`, `RDMA_OPTION_IB_PATH`
    const OPTION: (c_int, c_int) = (1, 1);
    let paths = core::mem::take(&mut inner.route);
    if paths.is_empty() {
        // SAFETY: a living identifier.
        let code = unsafe { verbs::rdma_resolve_route(inner.id, timeout_ms) };
        return verbs::checked(code, "rconnect: no route");
    }
    let (value, length) = (paths.as_ptr().cast(), paths.len());
    // SAFETY: a living identifier, and bytes that live through the call.
    let code = unsafe { verbs::rdma_set_option(inner.id, OPTION.0, OPTION.1, value, length) };
    verbs::checked(code, "rconnect: RDMA_ROUTE has no path for this")
}
