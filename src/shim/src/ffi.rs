//! The functions that are put in front of the C library's.
//!
//! Proof: tests/abi/shim.sh runs them under real programs, with and without the variable.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::map::{PATH_MAX, is_redirected, join};

mod endings;
mod masks;
mod signals;

/// Longest root that is followed; leaves room for the longest path in the tree.
const ROOT_MAX: usize = 1024;

/// The tree's root, copied once at load.
struct Root(UnsafeCell<[u8; ROOT_MAX]>);

// SAFETY: written once by `init`, before the program's first thread can exist, and only read
// after that.
unsafe impl Sync for Root {}

static ROOT: Root = Root(UnsafeCell::new([0; ROOT_MAX]));
/// 0 = no tree: pass everything through.
static ROOT_LEN: AtomicUsize = AtomicUsize::new(0);

/// Runs when the dynamic linker loads the shim, before the program.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

extern "C" fn init() {
    endings::prepare();
    signals::prepare();
    masks::prepare();
    // SAFETY: the name ends with NUL; no other thread runs yet.
    let value = unsafe { libc::getenv(c"ROCEBUD_SYSFS".as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: getenv gives a NUL-terminated string.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    if value.is_empty() {
        return;
    }
    if value.first() != Some(&b'/') || value.len() > ROOT_MAX {
        complain(value);
        return;
    }
    // SAFETY: no other thread runs yet, and nobody else holds a reference to the array.
    let root = unsafe { &mut *ROOT.0.get() };
    root[..value.len()].copy_from_slice(value);
    ROOT_LEN.store(value.len(), Ordering::Release);
}

/// One line on standard error, whoever reads it.
fn complain(value: &[u8]) {
    let parts = [
        &b"rocebud: ROCEBUD_SYSFS is \""[..],
        value,
        b"\", which counts as not set: it wants a whole path of at most 1024 bytes\n",
    ];
    let part = |p: &&[u8]| libc::iovec {
        iov_base: p.as_ptr().cast_mut().cast(),
        iov_len: p.len(),
    };
    let parts = parts.each_ref().map(part);
    // SAFETY: the system only reads the parts, which live until it returns.
    unsafe { libc::writev(libc::STDERR_FILENO, parts.as_ptr(), parts.len() as c_int) };
}

/// The root of the tree, empty without one.
fn root() -> &'static [u8] {
    let len = ROOT_LEN.load(Ordering::Acquire);
    // SAFETY: written before the store that published the length, and never again.
    let root: &[u8; ROOT_MAX] = unsafe { &*ROOT.0.get() };
    root.get(..len).unwrap_or_default()
}

/// The calling thread's errno.
fn errno() -> *mut c_int {
    // SAFETY: always gives the calling thread's own int.
    unsafe { libc::__errno_location() }
}

/// Calls `call` with the path in the tree, and with the path itself when it is not one of ours
/// or the tree does not have it.
fn redirect<R: Copy>(
    path: *const c_char,
    failed: fn(R) -> bool,
    call: impl Fn(*const c_char) -> R,
) -> R {
    let root = root();
    if root.is_empty() || path.is_null() {
        return call(path);
    }
    let byte = |i| path.cast::<u8>().wrapping_add(i);
    // SAFETY: the bytes of the caller's string are read one by one, none after its NUL.
    if !is_redirected(|i| unsafe { byte(i).read() }) {
        return call(path);
    }
    let mut buf = [0; PATH_MAX];
    // SAFETY: the caller gives a NUL-terminated string.
    if !join(root, unsafe { CStr::from_ptr(path) }.to_bytes(), &mut buf) {
        return call(path);
    }
    let answer = call(buf.as_ptr().cast());
    // SAFETY: errno belongs to this thread.
    if failed(answer) && unsafe { errno().read() } == libc::ENOENT {
        return call(path);
    }
    answer
}

fn minus(r: c_int) -> bool {
    r < 0
}

fn minus_long(r: isize) -> bool {
    r < 0
}

fn null(r: *mut c_void) -> bool {
    r.is_null()
}

/// The next definition of a function: the C library's.
struct Next(&'static CStr, AtomicPtr<c_void>);

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self(name, AtomicPtr::new(ptr::null_mut()))
    }

    fn get(&self) -> Option<*mut c_void> {
        let mut p = self.1.load(Ordering::Relaxed);
        if p.is_null() {
            // SAFETY: the name ends with NUL.
            p = unsafe { libc::dlsym(libc::RTLD_NEXT, self.0.as_ptr()) };
            self.1.store(p, Ordering::Relaxed);
        }
        (!p.is_null()).then_some(p)
    }
}

/// Defines a function of the C library: its own definition, called with the argument named
/// `path` redirected. A C library without the function answers ENOSYS.
macro_rules! interpose {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, $path:ident, $failed:ident, $bad:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> $ret {
            static NEXT: Next = Next::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a symbol holds no NUL"),
                },
            );
            let Some(next) = NEXT.get() else {
                // SAFETY: errno belongs to this thread.
                unsafe { errno().write(libc::ENOSYS) };
                return $bad;
            };
            // SAFETY: the C library's function of this name has this type.
            let next: extern "C" fn($($ty),*) -> $ret = unsafe { core::mem::transmute(next) };
            redirect($path, $failed, |$path| next($($arg),*))
        }
    )*};
}

type Path = *const c_char;

// The mode of the open family is variadic in C; as a third or fourth integer argument it travels
// in the same register.
interpose! {
    fn open(path: Path, flags: c_int, mode: c_uint) -> c_int, path, minus, -1;
    fn open64(path: Path, flags: c_int, mode: c_uint) -> c_int, path, minus, -1;
    fn openat(dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int, path, minus, -1;
    fn openat64(dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int, path, minus, -1;
    fn __open_2(path: Path, flags: c_int) -> c_int, path, minus, -1;
    fn __open64_2(path: Path, flags: c_int) -> c_int, path, minus, -1;
    fn __openat_2(dir: c_int, path: Path, flags: c_int) -> c_int, path, minus, -1;
    fn __openat64_2(dir: c_int, path: Path, flags: c_int) -> c_int, path, minus, -1;
    fn access(path: Path, mode: c_int) -> c_int, path, minus, -1;
    fn eaccess(path: Path, mode: c_int) -> c_int, path, minus, -1;
    fn euidaccess(path: Path, mode: c_int) -> c_int, path, minus, -1;
    fn faccessat(dir: c_int, path: Path, mode: c_int, flags: c_int) -> c_int, path, minus, -1;
    fn stat(path: Path, st: *mut c_void) -> c_int, path, minus, -1;
    fn stat64(path: Path, st: *mut c_void) -> c_int, path, minus, -1;
    fn lstat(path: Path, st: *mut c_void) -> c_int, path, minus, -1;
    fn lstat64(path: Path, st: *mut c_void) -> c_int, path, minus, -1;
    fn fstatat(dir: c_int, path: Path, st: *mut c_void, flags: c_int) -> c_int, path, minus, -1;
    fn fstatat64(dir: c_int, path: Path, st: *mut c_void, flags: c_int) -> c_int, path, minus, -1;
    fn statx(dir: c_int, path: Path, flags: c_int, mask: c_uint, st: *mut c_void) -> c_int,
        path, minus, -1;
    fn fopen(path: Path, mode: Path) -> *mut c_void, path, null, ptr::null_mut();
    fn fopen64(path: Path, mode: Path) -> *mut c_void, path, null, ptr::null_mut();
    fn opendir(path: Path) -> *mut c_void, path, null, ptr::null_mut();
    fn scandir(path: Path, list: *mut c_void, pick: *mut c_void, order: *mut c_void) -> c_int,
        path, minus, -1;
    fn scandir64(path: Path, list: *mut c_void, pick: *mut c_void, order: *mut c_void) -> c_int,
        path, minus, -1;
    fn readlink(path: Path, buf: *mut c_char, size: usize) -> isize, path, minus_long, -1;
    fn __readlink_chk(path: Path, buf: *mut c_char, size: usize, room: usize) -> isize,
        path, minus_long, -1;
    fn readlinkat(dir: c_int, path: Path, buf: *mut c_char, size: usize) -> isize,
        path, minus_long, -1;
    fn __readlinkat_chk(dir: c_int, path: Path, buf: *mut c_char, size: usize, room: usize)
        -> isize, path, minus_long, -1;
    fn realpath(path: Path, buf: *mut c_char) -> *mut c_void, path, null, ptr::null_mut();
    fn __realpath_chk(path: Path, buf: *mut c_char, room: usize) -> *mut c_void,
        path, null, ptr::null_mut();
    fn canonicalize_file_name(path: Path) -> *mut c_void, path, null, ptr::null_mut();
    // Programs built against a C library older than 2.33 ask by these names.
    fn __xstat(version: c_int, path: Path, st: *mut c_void) -> c_int, path, minus, -1;
    fn __xstat64(version: c_int, path: Path, st: *mut c_void) -> c_int, path, minus, -1;
    fn __lxstat(version: c_int, path: Path, st: *mut c_void) -> c_int, path, minus, -1;
    fn __lxstat64(version: c_int, path: Path, st: *mut c_void) -> c_int, path, minus, -1;
    fn __fxstatat(version: c_int, dir: c_int, path: Path, st: *mut c_void, flags: c_int) -> c_int,
        path, minus, -1;
    fn __fxstatat64(version: c_int, dir: c_int, path: Path, st: *mut c_void, flags: c_int)
        -> c_int, path, minus, -1;
}
