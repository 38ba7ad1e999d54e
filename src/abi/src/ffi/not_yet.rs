//! The one table of calls that this release does not do. Each answers by its own convention and
//! touches nothing; a call about an object of a real device goes to the real library instead.
//!
//! Not here: what the headers reach through the context's own tables.
//! Those slots are empty, and the headers answer EOPNOTSUPP themselves.

use core::ffi::{CStr, c_void};

use rocebud_objects::Errno;

use super::boundary::set_errno;
use super::handle::{Handle, Object, Owner};

/// How a refused call answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The errno itself, positive.
    Code,
    /// −1 and errno; any width of integer.
    Minus,
    /// NULL and errno.
    Null,
    /// Zero: nothing to do, or nothing known.
    Zero,
}

/// What the first argument is, which decides whether the call may be for a real device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    /// `struct ibv_context *`
    Context,
    /// PD, MR, QP, …: begins with its context.
    Object,
    /// Something else.
    Other,
}

/// One line of the table.
struct NotYet {
    name: &'static CStr,
    answer: Answer,
    errno: Errno,
    first: First,
}

/// Any object whose first words lead to a device; only the owner is asked for.
struct AnyContext;
impl Object for AnyContext {
    const DEPTH: usize = 1;
}
struct AnyObject;
impl Object for AnyObject {
    const DEPTH: usize = 2;
}

/// Six integer registers hold every argument of the calls below.
type Registers = [usize; 6];
type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;

fn respond(line: &NotYet, arg: Registers) -> isize {
    let answered = std::panic::catch_unwind(|| theirs(line, arg[0]));
    if let Ok(Some(f)) = answered {
        let [a, b, c, d, e, g] = arg;
        // SAFETY: the same function of the real library, with the caller's own arguments.
        return unsafe { f(a, b, c, d, e, g) };
    }
    if line.answer != Answer::Zero {
        set_errno(line.errno);
    }
    match line.answer {
        Answer::Code => line.errno.0 as isize,
        Answer::Minus => -1,
        Answer::Null | Answer::Zero => 0,
    }
}

/// The real library's function, when the first argument is an object of a real device.
fn theirs(line: &NotYet, first: usize) -> Option<Function> {
    let p: *mut c_void = core::ptr::with_exposed_provenance_mut(first);
    let library = match line.first {
        First::Context => library_of(Handle::<AnyContext>::from_raw(p)),
        First::Object => library_of(Handle::<AnyObject>::from_raw(p)),
        First::Other => return None,
    }?;
    let f = library.symbol(line.name)?;
    // SAFETY: the table lists functions of at most six integer or pointer arguments.
    Some(unsafe { core::mem::transmute::<*mut c_void, Function>(f) })
}

fn library_of<T: Object>(handle: Handle<T>) -> Option<&'static super::real::Library> {
    match handle.owner() {
        Ok(Owner::Them(library)) => Some(library),
        _ => None,
    }
}

macro_rules! not_yet {
    ($($name:ident: $answer:ident $errno:ident $first:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
        ) -> isize {
            const NAME: &str = concat!(stringify!($name), "\0");
            const LINE: NotYet = NotYet {
                name: match CStr::from_bytes_with_nul(NAME.as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a symbol holds no NUL"),
                },
                answer: Answer::$answer,
                errno: Errno::$errno,
                first: First::$first,
            };
            respond(&LINE, [a, b, c, d, e, f])
        }
    )*};
}

not_yet! {
    // Memory: dma-buf, DMA handles, buffers.
    ibv_reg_dmabuf_mr: Null EOPNOTSUPP Object;
    ibv_alloc_dmah: Null EOPNOTSUPP Context;
    ibv_dealloc_dmah: Code EOPNOTSUPP Object;
    ibv_dm_export_dmabuf_fd: Minus EOPNOTSUPP Object;
    ibv_alloc_buf: Null EOPNOTSUPP Object;
    ibv_free_buf: Zero EOPNOTSUPP Other;
    ibv_reg_buf_mr: Null EOPNOTSUPP Object;

    // Completion counters (of rdma-core 65).
    _ibv_query_comp_cntr_caps: Code EOPNOTSUPP Context;
    ibv_create_comp_cntr: Null EOPNOTSUPP Context;
    ibv_destroy_comp_cntr: Code EOPNOTSUPP Object;
    ibv_set_comp_cntr: Code EOPNOTSUPP Object;
    ibv_set_err_comp_cntr: Code EOPNOTSUPP Object;
    ibv_inc_comp_cntr: Code EOPNOTSUPP Object;
    ibv_inc_err_comp_cntr: Code EOPNOTSUPP Object;
    ibv_read_comp_cntr: Code EOPNOTSUPP Object;
    ibv_read_err_comp_cntr: Code EOPNOTSUPP Object;
    ibv_qp_attach_comp_cntr: Code EOPNOTSUPP Object;
    ibv_export_buf_dmabuf_fd: Minus EOPNOTSUPP Other;

    // Objects shared between processes.

    // Enhanced connection establishment.
    ibv_set_ece: Code EOPNOTSUPP Object;
    ibv_query_ece: Code EOPNOTSUPP Object;

    // Neighbour resolution, for providers.
    ibv_resolve_eth_l2_from_gid: Code EOPNOTSUPP Context;
}
