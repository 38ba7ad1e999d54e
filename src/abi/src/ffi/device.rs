//! The device list: ours first, then the machine's own.

use core::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use rocebud_objects::Errno;

use super::boundary::{Arg, Outcome, Pointer, Silent, enter, set_errno};
use super::handle::{Head, Object, mark};
use super::real;
use super::types::{Plain, ibv_device};

/// A device of ours. Made when it is first listed and never freed: programs keep the pointer
/// after they freed the list, and the number of interfaces bounds them.
#[repr(C)]
pub(crate) struct Device {
    head: Head<ibv_device>,
    /// Position among our devices; `uverbsN`.
    index: usize,
    name: String,
    /// The newest snapshot of the device of this name.
    newest: Mutex<rocebud_verbs::Device>,
}

impl Object for Device {
    const DEPTH: usize = 0;
}

impl Device {
    fn new(index: usize, device: rocebud_verbs::Device) -> Self {
        let name = device.name().to_owned();
        let mut head = ibv_device::zeroed();
        head._ops[0] = mark();
        head.node_type = NODE_CA;
        put(&mut head.name, &name);
        put(&mut head.dev_name, &format!("uverbs{index}"));
        put(
            &mut head.dev_path,
            &format!("/sys/class/infiniband_verbs/uverbs{index}"),
        );
        put(
            &mut head.ibdev_path,
            &format!("/sys/class/infiniband/{name}"),
        );
        Self {
            head: Head::new(head),
            index,
            name,
            newest: Mutex::new(device),
        }
    }

    pub(crate) fn verbs(&self) -> rocebud_verbs::Device {
        self.newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) const fn as_ptr(&self) -> *mut ibv_device {
        self.head.as_ptr()
    }
}

/// `IBV_NODE_CA`; transport type 0 is InfiniBand, which RoCE counts as.
const NODE_CA: c_int = 1;

/// Copies a string into a C array, cut to leave room for the NUL.
pub(crate) fn put(dst: &mut [c_char], text: &str) {
    let room = dst.len().saturating_sub(1);
    for (d, s) in dst.iter_mut().zip(text.bytes().take(room)) {
        *d = s.cast_signed() as c_char;
    }
}

/// Every device of ours that was ever listed, by name.
static KNOWN: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// The device objects of a fresh snapshot, in its order.
pub(crate) fn ours() -> Outcome<Vec<&'static Device>> {
    let snapshot = rocebud_verbs::device_list()?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(snapshot
        .into_iter()
        .map(|device| intern(&mut known, device))
        .collect())
}

fn intern(known: &mut Vec<&'static Device>, device: rocebud_verbs::Device) -> &'static Device {
    if let Some(old) = known.iter().find(|k| k.name == device.name()) {
        *old.newest.lock().unwrap_or_else(PoisonError::into_inner) = device;
        return old;
    }
    let new: &'static Device = Box::leak(Box::new(Device::new(known.len(), device)));
    known.push(new);
    new
}

/// A device of ours by its name, if it was listed before.
pub(crate) fn known(name: &[u8]) -> Option<&'static Device> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().find(|d| d.name.as_bytes() == name).copied()
}

/// What lies before the array that the program sees: how to free it.
#[repr(C)]
struct ListHeader {
    /// Entries after the header, the closing NULL among them.
    entries: usize,
    /// The real library's own array; NULL without real devices.
    real: *mut *mut ibv_device,
}

type DeviceArray = *mut *mut ibv_device;

/// `ibv_get_device_list`: a NULL-terminated array, and the number of devices.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: Arg<c_int>) -> DeviceArray {
    let list = enter::<Pointer, *mut *mut ibv_device>(|| {
        let (real, real_count) = real_list();
        let mine = match ours() {
            Ok(mine) => mine,
            // Real devices work without a daemon of ours.
            Err(_) if real_count > 0 => Vec::new(),
            // The layer below has said why, in one line on standard error.
            Err(e) => return Err(e),
        };
        let mut devices: Vec<*mut ibv_device> = mine.iter().map(|d| d.as_ptr()).collect();
        for i in 0..real_count {
            // SAFETY: the real library's array has real_count entries.
            devices.push(unsafe { real.wrapping_add(i).read() });
        }
        count.set_if_wanted(c_int::try_from(devices.len()).unwrap_or(c_int::MAX));
        Ok(make_array(&devices, real))
    });
    if list.is_null() {
        count.set_if_wanted(0);
    }
    list
}

/// The real library's devices, when the kernel has some.
fn real_list() -> (DeviceArray, usize) {
    const NONE: (DeviceArray, usize) = (core::ptr::null_mut(), 0);
    if !real::has_devices() {
        return NONE;
    }
    let Some(f) = real::library()
        .ok()
        .and_then(|l| l.symbol(c"ibv_get_device_list"))
    else {
        return NONE;
    };
    // SAFETY: the real library's function has this type.
    let f: extern "C" fn(*mut c_int) -> DeviceArray = unsafe { core::mem::transmute(f) };
    let mut n = 0;
    let list = f(&raw mut n);
    if list.is_null() {
        NONE
    } else {
        (list, usize::try_from(n).unwrap_or(0))
    }
}

fn make_array(devices: &[*mut ibv_device], real: DeviceArray) -> DeviceArray {
    let entries = devices.len() + 1;
    // SAFETY: the size is not zero.
    let base = unsafe { std::alloc::alloc_zeroed(list_layout(entries)) };
    if base.is_null() {
        std::alloc::handle_alloc_error(list_layout(entries));
    }
    // SAFETY: the block begins with room for a header.
    unsafe {
        base.cast::<ListHeader>()
            .write(ListHeader { entries, real })
    };
    // SAFETY: the layout has the entries after the header.
    let list: DeviceArray = unsafe { base.add(size_of::<ListHeader>()).cast() };
    // SAFETY: room for devices.len() + 1 entries; the last stays NULL.
    unsafe { list.copy_from_nonoverlapping(devices.as_ptr(), devices.len()) };
    list
}

fn list_layout(entries: usize) -> std::alloc::Layout {
    let size = size_of::<ListHeader>() + entries * size_of::<*mut ibv_device>();
    std::alloc::Layout::from_size_align(size, align_of::<ListHeader>())
        .unwrap_or(std::alloc::Layout::new::<ListHeader>())
}

/// `ibv_free_device_list`: only the array goes; devices stay valid.
#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(list: DeviceArray) {
    if list.is_null() {
        return;
    }
    enter::<Silent, ()>(|| {
        // SAFETY: verbs.h: the list came from ibv_get_device_list, so a header lies before it.
        let base: *mut ListHeader = unsafe { list.byte_sub(size_of::<ListHeader>()).cast() };
        // SAFETY: as above.
        let header = unsafe { base.read() };
        if !header.real.is_null() {
            free_real_list(header.real);
        }
        // SAFETY: allocated by make_array with this layout.
        unsafe { std::alloc::dealloc(base.cast(), list_layout(header.entries)) };
        Ok(())
    });
}

fn free_real_list(list: DeviceArray) {
    if let Some(f) = real::library()
        .ok()
        .and_then(|l| l.symbol(c"ibv_free_device_list"))
    {
        // SAFETY: the real library's function has this type.
        let f: extern "C" fn(DeviceArray) = unsafe { core::mem::transmute(f) };
        f(list);
    }
}

/// `ibv_get_device_name`: both libraries keep the name in the public structure.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *const ibv_device) -> *const c_char {
    if device.is_null() {
        set_errno(Errno::EINVAL);
        return core::ptr::null();
    }
    // SAFETY: verbs.h: a device of a list.
    unsafe { (&raw const (*device).name).cast() }
}

c_api! {
    /// `ibv_get_device_guid`: network byte order.
    fn ibv_get_device_guid(device: Device) -> Value, u64 {
        Ok(device.verbs().guid().to_be())
    }

    /// `ibv_get_device_index`: 1 and up, as the kernel numbers; -1 when unknown.
    fn ibv_get_device_index(device: Device) -> MinusOne, c_int {
        Ok(c_int::try_from(device.index + 1).unwrap_or(c_int::MAX))
    }
}

/// A value that sysfs would show for one of our devices, without its newline.
pub(crate) fn sysfs_value(dir: &CStr, file: &CStr) -> Option<String> {
    let name = dir.to_bytes().strip_prefix(b"/sys/class/infiniband/")?;
    let device = known(name)?;
    let guid = |g: u64| {
        let [a, b, c, d] = [g >> 48, g >> 32, g >> 16, g].map(|part| part & 0xffff);
        format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    };
    Some(match file.to_bytes() {
        b"fw_ver" => env!("CARGO_PKG_VERSION").to_owned(),
        b"board_id" | b"hca_type" => "rocebud".to_owned(),
        b"hw_rev" => "0".to_owned(),
        b"node_type" => "1: CA".to_owned(),
        b"node_guid" | b"sys_image_guid" => guid(device.verbs().guid()),
        _ => return None,
    })
}
