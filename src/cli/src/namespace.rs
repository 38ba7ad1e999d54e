//! `rocebud run --ns`: a mount namespace in which the tree lies where the kernel's would.
//!
//! `/sys` cannot be extended, so `/sys/class` and `/dev` are covered by tmpfs directories in which
//! everything that was there is bound again, beside our own entries.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::{Failure, sys};

/// Moves this process into namespaces of its own and shows the tree there.
pub(crate) fn enter(tree: &Path) -> Result<(), Failure> {
    unshare()?;
    mounts(tree).map_err(|error| {
        Failure::new(format!(
            "--ns could not build its mount namespace ({error}): run without --ns"
        ))
    })
}

fn unshare() -> Result<(), Failure> {
    let refused = |error: io::Error| {
        Failure::new(format!(
            "--ns may not make namespaces here ({error}): run without --ns, as root, or allow user \
             namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces)"
        ))
    };
    let uid = rustix::process::geteuid();
    let gid = rustix::process::getegid();
    if uid.is_root() {
        return sys::unshare(UnshareFlags::NEWNS).map_err(refused);
    }
    sys::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(refused)?;
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    fs::write("/proc/self/setgroups", "deny").map_err(refused)?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(refused)?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(refused)
}

fn mounts(tree: &Path) -> io::Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let room = tree.join("ns");
    fs::create_dir(&room)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", &room, "tmpfs", flags, None)?;
    let class = room.join("class");
    let dev = room.join("dev");
    rebuild(Path::new("/sys/class"), &class)?;
    for name in ["infiniband", "infiniband_verbs"] {
        let target = class.join(name);
        fs::create_dir(&target)?;
        bind(&tree.join("sys/class").join(name), &target)?;
    }
    rebuild(Path::new("/dev"), &dev)?;
    let infiniband = dev.join("infiniband");
    fs::create_dir(&infiniband)?;
    for entry in fs::read_dir(tree.join("dev/infiniband"))? {
        let target = infiniband.join(entry?.file_name());
        fs::File::create(&target)?;
        bind(Path::new("/dev/null"), &target)?;
    }
    bind(&class, Path::new("/sys/class"))?;
    bind(&dev, Path::new("/dev"))
}

/// Makes `target` a directory with everything that `source` holds, bound or linked again, but for
/// what rocebud shows itself.
fn rebuild(source: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir(target)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "infiniband" || name == "infiniband_verbs" {
            continue;
        }
        let (from, to) = (entry.path(), target.join(&name));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to)?;
        } else if kind.is_file() || kind.is_char_device() || kind.is_block_device() {
            fs::File::create(&to)?;
        } else {
            continue;
        }
        // Something that vanished meanwhile or may not be bound is missing then, no more.
        let _ = bind(&from, &to);
    }
    Ok(())
}

fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind_recursive(source, target)?)
}
