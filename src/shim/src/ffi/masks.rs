//! Changes of signal masks, counted for the library.
//!
//! A thread that blocks SIGSEGV or SIGBUS is guarded in another way, so the library must know its
//! mask. To ask the kernel before every few copies shows in a message's latency; so every call of
//! the C library that can leave a thread with another mask is counted here, jumps too: they leave
//! the mask of the handler that they jump out of, or bring back an older one. The library asks again
//! when the count has moved.
//!
//! Not seen from here, and believed by the library for one tick of the coarse clock (1 to 10 ms):
//! a change by a bare system call, by a handler that changes the mask it returns to, by a context
//! that ends where `uc_link` says, and an exception thrown out of a handler. Verbs called inside of
//! a handler are a fifth: the kernel gives that its own mask. For these there is no cheaper witness
//! than the kernel, and none of them is a thing that programs do while memory goes that they have
//! registered; the price of asking always is 140 ns twice a message.
//!
//! Proof: case `blocked_a_moment_ago` of tests/peer/c/vanish.c, once for each function.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use super::{Next, errno};

/// Changes of signal masks, of any thread.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// For the library: where the count is. A thread whose mask is changed by itself sees it moved.
#[unsafe(no_mangle)]
extern "C" fn rocebud_shim_mask_changes() -> *const AtomicU32 {
    &raw const CHANGES
}

fn count() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// Defines functions of the C library that may change the caller's mask: counted, then its own
/// definition. One that the C library lacks answers ENOSYS; a jump that it lacks ends the program,
/// for there is nowhere to go on.
macro_rules! counted {
    (@missing $bad:expr) => {{
        // SAFETY: errno belongs to this thread.
        unsafe { errno().write(libc::ENOSYS) };
        return $bad;
    }};
    (@missing) => {
        // SAFETY: ends the process.
        unsafe { libc::abort() }
    };
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $(, $bad:expr)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                let Some(next) = next::$name.get() else {
                    counted!(@missing $($bad)?)
                };
                count();
                type Function = unsafe extern "C" fn($($ty),*) -> $ret;
                // SAFETY: the C library's function of this name has this type.
                let next = unsafe { core::mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: the caller's arguments, as it gave them.
                unsafe { next($($arg),*) }
            }
        )*

        #[allow(non_upper_case_globals, reason = "named as the functions")]
        mod next {
            use super::{CStr, Next};
            $(pub(super) static $name: Next = Next::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a symbol holds no NUL"),
                },
            );)*
        }

        /// Looks the C library's functions up while that is allowed: they may be called from
        /// handlers.
        pub(super) fn prepare() {
            $(let _ = next::$name.get();)*
        }
    };
}

type Set = *const libc::sigset_t;
type OldSet = *mut libc::sigset_t;
type Place = *mut c_void;

counted! {
    fn pthread_sigmask(how: c_int, new: Set, old: OldSet) -> c_int, libc::ENOSYS;
    fn sigprocmask(how: c_int, new: Set, old: OldSet) -> c_int, -1;
    fn sighold(signal: c_int) -> c_int, -1;
    fn sigrelse(signal: c_int) -> c_int, -1;
    fn sigset(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t, libc::SIG_ERR;
    fn sigblock(mask: c_int) -> c_int, -1;
    fn sigsetmask(mask: c_int) -> c_int, -1;
    fn longjmp(to: Place, value: c_int) -> !;
    fn _longjmp(to: Place, value: c_int) -> !;
    fn siglongjmp(to: Place, value: c_int) -> !;
    fn __longjmp_chk(to: Place, value: c_int) -> !;
    fn setcontext(to: *const c_void) -> c_int, -1;
    fn swapcontext(from: Place, to: *const c_void) -> c_int, -1;
}
