//! The sysfs tree that some programs read past the verbs API, written into a directory.
//!
//! It mirrors absolute paths: `ROOT/sys/class/infiniband/…`, `ROOT/sys/class/infiniband_verbs/…`,
//! `ROOT/dev/infiniband/uverbsN`. It shows the moment at which it was written; what verbs answers
//! is always current.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rocebud_ctl::DeviceInfo;
use rocebud_wire::Gid;

/// A directory for the tree of this process: private, removed by a later run or a leaving daemon
/// when the process is gone.
pub(crate) fn run_directory() -> io::Result<PathBuf> {
    let base = base_directory()?;
    let pids = pid_namespace();
    remove_stale(&base, pids);
    let dir = base.join(directory_name(std::process::id(), pids));
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::DirBuilder::new().mode(0o700).create(&dir)?;
    Ok(dir)
}

/// Removes the trees of this user's processes that are gone.
pub(crate) fn sweep() {
    for base in candidates() {
        if is_private(&base, rustix::process::geteuid().as_raw()).is_ok() {
            remove_stale(&base, pid_namespace());
        }
    }
}

/// Writes the tree of `devices` under `root`, which is empty.
pub(crate) fn write(root: &Path, devices: &[DeviceInfo]) -> io::Result<()> {
    let class = root.join("sys/class/infiniband");
    let verbs = root.join("sys/class/infiniband_verbs");
    let dev = root.join("dev/infiniband");
    for dir in [&class, &verbs, &dev] {
        fs::create_dir_all(dir)?;
    }
    file(&verbs, "abi_version", "6")?;
    for (index, device) in devices.iter().enumerate() {
        write_device(&class.join(&device.name), device)?;
        write_uverbs(&verbs, index, device)?;
        // A character device that can be read and written, which is all that programs ask.
        symlink("/dev/null", dev.join(format!("uverbs{index}")))?;
    }
    Ok(())
}

fn write_device(dir: &Path, device: &DeviceInfo) -> io::Result<()> {
    let guid = groups(&device.guid.to_be_bytes());
    fs::create_dir_all(dir.join("device/net").join(&device.netdev))?;
    file(&dir.join("device"), "numa_node", "-1")?;
    file(dir, "node_type", "1: CA")?;
    file(dir, "node_desc", &device.name)?;
    file(dir, "node_guid", &guid)?;
    file(dir, "sys_image_guid", &guid)?;
    file(dir, "fw_ver", env!("CARGO_PKG_VERSION"))?;
    file(dir, "hw_rev", "0")?;
    file(dir, "hca_type", "rocebud")?;
    file(dir, "board_id", "rocebud")?;
    write_port(&dir.join("ports/1"), device)
}

fn write_port(dir: &Path, device: &DeviceInfo) -> io::Result<()> {
    let (state, phys) = match (device.active, device.enabled) {
        (true, _) => ("4: ACTIVE", "5: LinkUp"),
        (false, true) => ("1: DOWN", "2: Polling"),
        (false, false) => ("1: DOWN", "3: Disabled"),
    };
    let [gids, types, ndevs, pkeys] =
        ["gids", "gid_attrs/types", "gid_attrs/ndevs", "pkeys"].map(|name| dir.join(name));
    for sub in [&gids, &types, &ndevs, &pkeys] {
        fs::create_dir_all(sub)?;
    }
    file(dir, "state", state)?;
    file(dir, "phys_state", phys)?;
    file(dir, "rate", &rate(device.speed_mbps))?;
    file(dir, "link_layer", "Ethernet")?;
    file(dir, "lid", "0x0")?;
    file(dir, "sm_lid", "0x0")?;
    file(dir, "sm_sl", "0")?;
    file(dir, "lid_mask_count", "0")?;
    file(dir, "cap_mask", "0x00010000")?;
    file(&pkeys, "0", "0xffff")?;
    for (index, entry) in device.gids.iter().enumerate() {
        let index = index.to_string();
        let gid = entry.map_or(Gid::ZERO, |entry| entry.gid());
        file(&gids, &index, &groups(&gid.0))?;
        // The kernel has the attributes of an empty entry refuse to be read; here they are absent.
        if entry.is_some() {
            file(&types, &index, "RoCE v2")?;
            file(&ndevs, &index, &device.netdev)?;
        }
    }
    Ok(())
}

fn write_uverbs(verbs: &Path, index: usize, device: &DeviceInfo) -> io::Result<()> {
    const MAJOR: u32 = 231;
    const FIRST_MINOR: usize = 192;
    let dir = verbs.join(format!("uverbs{index}"));
    fs::create_dir(&dir)?;
    file(&dir, "ibdev", &device.name)?;
    file(&dir, "abi_version", "1")?;
    file(&dir, "dev", &format!("{MAJOR}:{}", FIRST_MINOR + index))?;
    symlink(
        format!("../../infiniband/{}/device", device.name),
        dir.join("device"),
    )
}

fn file(dir: &Path, name: &str, value: &str) -> io::Result<()> {
    let mut file = fs::File::create(dir.join(name))?;
    writeln!(file, "{value}")?;
    file.set_permissions(fs::Permissions::from_mode(0o444))
}

/// Groups of four hex digits.
fn groups(bytes: &[u8]) -> String {
    let group = |pair: &[u8]| pair.iter().map(|b| format!("{b:02x}")).collect::<String>();
    bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

/// As the kernel words it: the next InfiniBand rate that is not below the speed.
fn rate(mbps: u32) -> String {
    const RATES: [(u32, &str); 10] = [
        (2_500, "2.5 Gb/sec (1X SDR)"),
        (5_000, "5 Gb/sec (1X DDR)"),
        (10_000, "10 Gb/sec (4X SDR)"),
        (25_000, "25 Gb/sec (1X EDR)"),
        (40_000, "40 Gb/sec (4X QDR)"),
        (50_000, "50 Gb/sec (1X HDR)"),
        (56_000, "56 Gb/sec (4X FDR)"),
        (100_000, "100 Gb/sec (4X EDR)"),
        (200_000, "200 Gb/sec (4X HDR)"),
        (400_000, "400 Gb/sec (4X NDR)"),
    ];
    let fits = RATES.iter().find(|(limit, _)| mbps <= *limit);
    fits.map_or("400 Gb/sec (4X NDR)", |(_, text)| text)
        .to_owned()
}

/// `$XDG_RUNTIME_DIR/rocebud`, else `/tmp/rocebud-UID`: ours alone.
fn base_directory() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for dir in candidates() {
        match private_directory(&dir, uid) {
            Ok(()) => return Ok(dir),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn candidates() -> impl Iterator<Item = PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| dir.is_absolute() && dir.is_dir());
    let runtime = runtime.map(|dir| dir.join("rocebud"));
    let tmp = PathBuf::from(format!("/tmp/rocebud-{uid}"));
    runtime.into_iter().chain([tmp])
}

/// Makes a directory, or takes one that is there if nobody else can have put anything into it.
fn private_directory(dir: &Path, uid: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    is_private(dir, uid)
}

fn is_private(dir: &Path, uid: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} is not a private directory of this user: remove it",
                dir.display()
            ),
        ));
    }
    Ok(())
}

/// Where the numbers of processes count; 0 if that cannot be told. Containers may share our
/// directory, and the processes of each are nobody's but its own.
fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

fn directory_name(pid: u32, pid_namespace: u64) -> String {
    format!("run-{pid_namespace}-{pid}")
}

/// Removes what runs of processes that are gone left behind. The process of a run keeps its
/// number when it becomes the program.
fn remove_stale(base: &Path, pid_namespace: u64) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    let prefix = format!("run-{pid_namespace}-");
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|n| n.strip_prefix(&prefix)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocebud_ctl::GidEntry;

    fn device(active: bool) -> DeviceInfo {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&[0xfe, 0x80]);
        bytes[15] = 1;
        DeviceInfo {
            name: "rb_eth0".into(),
            ifindex: 7,
            netdev: "eth0".into(),
            guid: 0x5054_00ff_fe12_3456,
            mac: [0x52, 0x54, 0, 0x12, 0x34, 0x56],
            netdev_mtu: 1500,
            active_mtu: 3,
            enabled: true,
            active,
            speed_mbps: 10_000,
            loopback: false,
            keeps_batches: false,
            gids: vec![Some(GidEntry { bytes, ifindex: 7 }), None],
        }
    }

    #[test]
    fn the_tree_reads_as_the_kernels_does() {
        let root = std::env::temp_dir().join(format!("rocebud-sysfs-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        write(&root, &[device(true)]).unwrap();
        let read = |path: &str| fs::read_to_string(root.join("sys/class").join(path));
        let port = "infiniband/rb_eth0/ports/1";
        assert_eq!(read(&format!("{port}/state")).unwrap(), "4: ACTIVE\n");
        assert_eq!(
            read(&format!("{port}/gids/0")).unwrap(),
            "fe80:0000:0000:0000:0000:0000:0000:0001\n"
        );
        assert_eq!(
            read(&format!("{port}/gids/1")).unwrap(),
            "0000:0000:0000:0000:0000:0000:0000:0000\n"
        );
        assert_eq!(
            read(&format!("{port}/gid_attrs/types/0")).unwrap(),
            "RoCE v2\n"
        );
        assert_eq!(
            read(&format!("{port}/gid_attrs/ndevs/0")).unwrap(),
            "eth0\n"
        );
        assert!(read(&format!("{port}/gid_attrs/types/1")).is_err());
        assert_eq!(
            read(&format!("{port}/rate")).unwrap(),
            "10 Gb/sec (4X SDR)\n"
        );
        assert_eq!(
            read("infiniband/rb_eth0/node_guid").unwrap(),
            "5054:00ff:fe12:3456\n"
        );
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev").unwrap(), "rb_eth0\n");
        assert_eq!(
            read("infiniband_verbs/uverbs0/device/numa_node").unwrap(),
            "-1\n"
        );
        assert!(
            root.join("sys/class/infiniband/rb_eth0/device/net/eth0")
                .is_dir()
        );
        use std::os::unix::fs::FileTypeExt;
        let node = fs::metadata(root.join("dev/infiniband/uverbs0")).unwrap();
        assert!(node.file_type().is_char_device());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_port_that_is_down_says_so() {
        let root = std::env::temp_dir().join(format!("rocebud-sysfs-down-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        write(&root, &[device(false)]).unwrap();
        let state = root.join("sys/class/infiniband/rb_eth0/ports/1/state");
        assert_eq!(fs::read_to_string(state).unwrap(), "1: DOWN\n");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn directories_of_processes_that_are_gone_are_removed_and_nobody_elses() {
        let base = std::env::temp_dir().join(format!("rocebud-stale-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        let (here, elsewhere) = (pid_namespace(), pid_namespace() + 1);
        let (alive, gone) = (std::process::id(), u32::MAX);
        let names = [
            directory_name(alive, here),
            directory_name(gone, elsewhere),
            "something".to_owned(),
        ];
        for name in names.iter().chain([&directory_name(gone, here)]) {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        remove_stale(&base, here);
        let left = fs::read_dir(&base).unwrap().flatten();
        let mut left: Vec<_> = left.map(|e| e.file_name().into_string().unwrap()).collect();
        left.sort();
        let mut wanted = names.to_vec();
        wanted.sort();
        assert_eq!(left, wanted);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn rates_are_the_next_that_infiniband_has() {
        assert_eq!(rate(1_000), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(10_000), "10 Gb/sec (4X SDR)");
        assert_eq!(rate(100_000), "100 Gb/sec (4X EDR)");
        assert_eq!(rate(800_000), "400 Gb/sec (4X NDR)");
    }
}
