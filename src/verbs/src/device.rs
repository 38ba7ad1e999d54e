//! Devices: one per network interface.

use rocebud_ctl::DeviceInfo;
use rocebud_objects::Misuse;
use rocebud_runtime::Runtime;

use crate::Context;

/// A device of the list. Cheap to clone; need not be open.
#[derive(Clone, Debug)]
pub struct Device {
    info: DeviceInfo,
}

/// All devices, in the daemon's order; starts the daemon if there is none.
///
/// # Errors
/// ENODEV, EADDRINUSE, EACCES, EPROTONOSUPPORT: no daemon to be had; the reason has been logged in
/// one line.
pub fn device_list() -> Result<Vec<Device>, Misuse> {
    let devices = Runtime::get()?.refresh()?;
    Ok(devices
        .iter()
        .cloned()
        .map(|info| Device { info })
        .collect())
}

impl Device {
    /// `rb_` and the interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// EUI-64 in host order, never 0.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.info.guid
    }

    /// Everything the daemon knows, as of when the list was made.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// `ibv_open_device`.
    ///
    /// # Errors
    /// ENODEV: the interface is gone. EIO: the daemon is.
    pub fn open(&self) -> Result<Context, Misuse> {
        let runtime = Runtime::get()?;
        let shared = runtime.open(self.info.ifindex)?;
        Ok(Context::new(runtime, shared, self.info.clone()))
    }
}
