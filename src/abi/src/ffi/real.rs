//! The distribution's libibverbs, for devices of the machine's own and for provider libraries.
//!
//! It is opened by absolute path, with its symbols kept local and bound to itself first
//! (RTLD_DEEPBIND): otherwise its own calls would come back to us. Nothing is opened before a
//! real device or a private symbol asks for it.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use rocebud_objects::{Errno, Misuse};
use rocebud_verbs::log::{self, Level};

use super::boundary::Outcome;

/// The opened library.
pub(crate) struct Library(usize);

/// Where distributions keep it.
const PLACES: &[&CStr] = &[
    #[cfg(target_arch = "x86_64")]
    c"/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    #[cfg(target_arch = "aarch64")]
    c"/usr/lib/aarch64-linux-gnu/libibverbs.so.1",
    c"/usr/lib64/libibverbs.so.1",
    c"/usr/lib/libibverbs.so.1",
];

const NONE: Misuse = Misuse::new(
    Errno::EOPNOTSUPP,
    "no distribution libibverbs.so.1 to pass this on to; install libibverbs1 or rdma-core",
);

/// The real library, opened at the first call.
pub(crate) fn library() -> Outcome<&'static Library> {
    static OPEN: OnceLock<Option<Library>> = OnceLock::new();
    OPEN.get_or_init(open).as_ref().ok_or(NONE)
}

impl Library {
    /// The address of a symbol, in whatever version the library has it.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        let handle = ptr::with_exposed_provenance_mut(self.0);
        // SAFETY: the handle came from dlopen and is never closed; the name ends with NUL.
        let p = unsafe { libc::dlsym(handle, name.as_ptr()) };
        (!p.is_null()).then_some(p)
    }

    /// The symbol, or ENOSYS when this release of the real library has none.
    pub(crate) fn need(&self, name: &CStr) -> Outcome<*mut c_void> {
        self.symbol(name).ok_or(Misuse::new(
            Errno::ENOSYS,
            "the distribution's libibverbs is too old for this call",
        ))
    }
}

/// Real devices are to be shown: not switched off, and the kernel lists some.
pub(crate) fn has_devices() -> bool {
    *wish() != Wish::Off && sysfs_lists_devices()
}

/// What `ROCEBUD_REAL` says.
#[derive(PartialEq, Eq)]
enum Wish {
    /// Not set: look in the usual places.
    Usual,
    /// `off`: behave as if there were none.
    Off,
    /// An absolute path: this file.
    File(CString),
}

fn wish() -> &'static Wish {
    static WISH: OnceLock<Wish> = OnceLock::new();
    WISH.get_or_init(|| match given() {
        Some(v) if v == "off" => Wish::Off,
        Some(v) if v.as_bytes().starts_with(b"/") => file_wished(v),
        Some(v) if !v.is_empty() => {
            log::line(
                Level::Warn,
                format_args!(
                    "ROCEBUD_REAL is {v:?}, which counts as not set: it wants off, or the whole \
                     path of a libibverbs.so.1"
                ),
            );
            Wish::Usual
        }
        _ => Wish::Usual,
    })
}

/// `ROCEBUD_REAL`; not set for a program with rights that its user lacks, which would load his code.
fn given() -> Option<OsString> {
    // SAFETY: only reads what the kernel gave at start.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os("ROCEBUD_REAL").filter(|_| !secure)
}

/// A file that cannot be the library is named at once, whether or not the machine has devices. None
/// takes its place: its user asked for a certain one.
fn file_wished(path: OsString) -> Wish {
    match why_unusable(Path::new(&path)) {
        Some(why) => {
            log::line(
                Level::Warn,
                format_args!(
                    "ROCEBUD_REAL names {}, which {why}: RDMA devices of the machine's own are \
                     left out",
                    path.display()
                ),
            );
            Wish::Off
        }
        // A variable of the environment holds no NUL.
        None => CString::new(path.into_vec()).map_or(Wish::Usual, Wish::File),
    }
}

fn why_unusable(path: &Path) -> Option<String> {
    // Of a FIFO nobody is waited for, and of a device nothing is read.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        // No word about the file.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => return None,
        Err(error) => return Some(format!("cannot be read ({error})")),
    };
    let about = file.metadata().ok()?;
    if !about.is_file() {
        return Some("is no file".to_owned());
    }
    if own_path().and_then(identity) == Some((about.dev(), about.ino())) {
        return Some("is rocebud's own".to_owned());
    }
    let mut start = [0; ELF_64.len()];
    match file.read_exact_at(&mut start, 0) {
        Ok(()) if start == *ELF_64 => None,
        _ => Some("is no library for this machine".to_owned()),
    }
}

/// How a file begins that holds code of 64 bits.
const ELF_64: &[u8; 5] = b"\x7fELF\x02";

fn open() -> Option<Library> {
    if sanitizer_present() {
        return None;
    }
    let (file, level) = match wish() {
        Wish::Off => return None,
        Wish::File(file) => (file.as_c_str(), Level::Warn),
        Wish::Usual => (*PLACES.iter().find(|p| is_another_file(p))?, Level::Info),
    };
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
    // SAFETY: the path ends with NUL; loading a library runs its constructors, as the program
    // itself would have done without us.
    let handle = unsafe { libc::dlopen(file.as_ptr(), flags) };
    if handle.is_null() {
        let why = load_error();
        let names = match wish() {
            Wish::File(_) => "ROCEBUD_REAL names ",
            _ => "the distribution has ",
        };
        log::line(
            level,
            format_args!(
                "{names}{}, which cannot be loaded ({why}): RDMA devices of the machine's own are \
                 left out",
                file.to_string_lossy()
            ),
        );
        return None;
    }
    let library = Library(handle.expose_provenance());
    replay_drivers(&library);
    Some(library)
}

/// Why the last library of this thread could not be loaded.
fn load_error() -> String {
    // SAFETY: no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: dlerror gives a NUL-terminated string that stays until this thread's next dl call.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// AddressSanitizer stops the program when anybody uses RTLD_DEEPBIND.
fn sanitizer_present() -> bool {
    // SAFETY: the name ends with NUL.
    let p = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__asan_init".as_ptr()) };
    !p.is_null()
}

/// The file exists and is not this library installed under the distribution's name.
fn is_another_file(path: &CStr) -> bool {
    let Some(own) = own_path() else { return false };
    match (identity(path), identity(own)) {
        (Some(there), Some(here)) => there != here,
        (there, _) => there.is_some(),
    }
}

/// The file that this code was loaded from.
fn own_path() -> Option<&'static CStr> {
    // SAFETY: a zeroed Dl_info is valid: it holds pointers only.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    let inside: *const c_void = super::handle::mark();
    // SAFETY: `info` is writable; the address may be anything.
    let found = unsafe { libc::dladdr(inside, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gives a NUL-terminated string that lives as long as the library is loaded,
    // and this library is never unloaded (-z nodelete).
    Some(unsafe { CStr::from_ptr(info.dli_fname) })
}

/// Device and inode.
fn identity(path: &CStr) -> Option<(u64, u64)> {
    // SAFETY: a zeroed stat is valid: it holds integers only.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the path ends with NUL and `st` is writable.
    let rc = unsafe { libc::stat(path.as_ptr(), &raw mut st) };
    (rc == 0).then_some((st.st_dev, st.st_ino))
}

/// Reads /sys/class/infiniband_verbs past the preload shim (by system call) and looks for a
/// device that is not one of ours, which `rocebud run --ns` may have put there.
fn sysfs_lists_devices() -> bool {
    let Some(dir) = RawFd::open(c"/sys/class/infiniband_verbs", libc::O_DIRECTORY) else {
        return false;
    };
    let mut buf = [0u8; 4096];
    loop {
        let n = dir.getdents(&mut buf);
        if n == 0 {
            return false;
        }
        if entries(&buf[..n]).any(|name| name.starts_with(b"uverbs") && !is_ours(name)) {
            return true;
        }
    }
}

/// The names in a buffer of struct linux_dirent64.
fn entries(buf: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = buf;
    core::iter::from_fn(move || {
        let length = rest
            .get(16..18)
            .map(|b| usize::from(u16::from_ne_bytes([b[0], b[1]])))?;
        let name = rest.get(19..length)?;
        rest = rest.get(length..)?;
        name.split(|b| *b == 0).next()
    })
}

/// The uverbs entry belongs to a device of ours.
fn is_ours(name: &[u8]) -> bool {
    let path = [b"/sys/class/infiniband_verbs/", name, b"/ibdev\0"].concat();
    let Ok(path) = CStr::from_bytes_with_nul(&path) else {
        return false;
    };
    let mut buf = [0u8; 64];
    let n = RawFd::open(path, 0).map_or(0, |f| f.read(&mut buf));
    buf[..n].starts_with(b"rb_")
}

/// A descriptor opened by system call, so that no interposer sees it.
struct RawFd(c_int);

impl RawFd {
    fn open(path: &CStr, flags: c_int) -> Option<Self> {
        let flags = flags | libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path ends with NUL.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        c_int::try_from(fd).ok().filter(|fd| *fd >= 0).map(Self)
    }

    fn getdents(&self, buf: &mut [u8]) -> usize {
        // SAFETY: the kernel writes at most buf.len() bytes.
        let n = unsafe { libc::syscall(libc::SYS_getdents64, self.0, buf.as_mut_ptr(), buf.len()) };
        usize::try_from(n).unwrap_or(0)
    }

    fn read(&self, buf: &mut [u8]) -> usize {
        // SAFETY: the kernel writes at most buf.len() bytes.
        let n = unsafe { libc::syscall(libc::SYS_read, self.0, buf.as_mut_ptr(), buf.len()) };
        usize::try_from(n).unwrap_or(0)
    }
}

impl Drop for RawFd {
    fn drop(&mut self) {
        // SAFETY: opened by this type and closed once.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Called by the trampolines: the real library's function of this name, or one that fails.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
unsafe extern "C" fn rocebud_private_resolve(name: *const c_char, null: c_int) -> *mut c_void {
    // SAFETY: the trampolines pass their own string constants.
    let name = unsafe { CStr::from_ptr(name) };
    // Loading must not disturb the errno that the application may be about to read.
    let found = std::panic::catch_unwind(|| library().ok().and_then(|l| l.symbol(name)));
    found.ok().flatten().unwrap_or(if null == 0 {
        refuse as *mut c_void
    } else {
        refuse_with_null as *mut c_void
    })
}

/// Stands in for a private function without a real library: EOPNOTSUPP.
extern "C" fn refuse() -> c_int {
    libc::EOPNOTSUPP
}

/// The same for functions that return a pointer.
extern "C" fn refuse_with_null() -> *mut c_void {
    super::boundary::set_errno(Errno::EOPNOTSUPP);
    ptr::null_mut()
}

/// Driver registrations, and whether they still have to wait for the library.
struct Drivers {
    opened: bool,
    waiting: Vec<(&'static CStr, usize)>,
}

static DRIVERS: Mutex<Drivers> = Mutex::new(Drivers {
    opened: false,
    waiting: Vec::new(),
});

/// Providers (libmlx5, libefa) register when they are loaded, which happens at every start of a
/// program that links them. As long as nobody needs a real device the registration waits; one
/// that comes later (from a provider that the real library itself loads) is passed on at once.
fn register_driver(symbol: &'static CStr, ops: *const c_void) {
    let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    if !drivers.opened {
        drivers.waiting.push((symbol, ops.expose_provenance()));
        return;
    }
    drop(drivers);
    if let Ok(library) = library() {
        forward_driver(library, symbol, ops);
    }
}

/// Passes on the registrations that waited.
fn replay_drivers(library: &Library) {
    let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
    drivers.opened = true;
    let waiting = std::mem::take(&mut drivers.waiting);
    drop(drivers);
    for (symbol, ops) in waiting {
        forward_driver(library, symbol, ptr::with_exposed_provenance(ops));
    }
}

fn forward_driver(library: &Library, symbol: &CStr, ops: *const c_void) {
    if let Some(f) = library.symbol(symbol) {
        // SAFETY: verbs_register_driver_N takes one pointer and returns nothing.
        let f: extern "C" fn(*const c_void) = unsafe { core::mem::transmute(f) };
        f(ops);
    }
}

macro_rules! register_driver {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(ops: *const c_void) {
            let symbol = const {
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(s) => s,
                    Err(_) => panic!("a symbol holds no NUL"),
                }
            };
            register_driver(symbol, ops);
        }
    )*};
}

register_driver! {
    verbs_register_driver_34
    verbs_register_driver_57
    verbs_register_driver_59
    verbs_register_driver_64
    verbs_register_driver_65
}

#[cfg(test)]
mod tests {
    use super::entries;

    /// One struct linux_dirent64: inode, offset, length, type, name.
    fn entry(name: &[u8]) -> Vec<u8> {
        let length = (19 + name.len() + 1).next_multiple_of(8);
        let mut e = vec![0u8; length];
        e[16..18].copy_from_slice(&(length as u16).to_ne_bytes());
        e[19..19 + name.len()].copy_from_slice(name);
        e
    }

    #[test]
    fn directory_entries_come_out_by_name() {
        let buf = [entry(b"."), entry(b"uverbs0"), entry(b"abi_version")].concat();
        let names: Vec<&[u8]> = entries(&buf).collect();
        assert_eq!(names, [&b"."[..], b"uverbs0", b"abi_version"]);
    }

    #[test]
    fn a_cut_directory_buffer_ends_the_list() {
        let mut buf = entry(b"uverbs0");
        buf.truncate(20);
        assert_eq!(entries(&buf).count(), 0);
        assert_eq!(entries(&[]).count(), 0);
        let mut zero_length = entry(b"x");
        zero_length[16] = 0;
        assert_eq!(entries(&zero_length).count(), 0);
    }
}
