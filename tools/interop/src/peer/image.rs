//! The guest's image and the agent, made by `peer/image.sh` and `cc` and kept in the cache.

use std::ffi::OsString;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::cache;
use crate::error::{Doing, Result, fail};

const IMAGE_SH: &str = include_str!("../../peer/image.sh");
const INIT_SH: &str = include_str!("../../peer/init.sh");
const AGENT: &[(&str, &str)] = &[
    ("agent.h", include_str!("../../agent/agent.h")),
    ("agent.c", include_str!("../../agent/agent.c")),
    ("verbs.h", include_str!("../../agent/verbs.h")),
    ("verbs.c", include_str!("../../agent/verbs.c")),
    ("cm.c", include_str!("../../agent/cm.c")),
];

/// What a guest boots from.
#[derive(Clone, Debug)]
pub struct Image {
    /// An ELF kernel, or a bzImage.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initrd: PathBuf,
    /// Kernel and package versions.
    pub version: String,
}

/// The agent for this machine, compiled if its sources are new.
///
/// # Errors
/// There is no C compiler, or libibverbs' headers are missing.
pub fn agent() -> Result<PathBuf> {
    // the guest has one, and no compiler
    match named_agent(std::env::var_os("ROCEBUD_INTEROP_AGENT"))? {
        Some(path) => Ok(path),
        None => compiled("rocebud-interop-agent", AGENT),
    }
}

fn named_agent(variable: Option<OsString>) -> Result<Option<PathBuf>> {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(path) = variable.filter(|v| !v.is_empty()).map(PathBuf::from) else {
        return Ok(None);
    };
    let can_run = |about: &Metadata| about.is_file() && about.permissions().mode() & 0o111 != 0;
    let names = || format!("ROCEBUD_INTEROP_AGENT names {}", path.display());
    match std::fs::metadata(&path).doing(names)? {
        about if can_run(&about) => Ok(Some(path)),
        _ => fail(format!("{}, which is no program", names())),
    }
}

/// A C program over libibverbs and librdmacm, or a library to be preloaded (`NAME.so`), compiled if its sources are new.
///
/// # Errors
/// There is no C compiler, or libibverbs' headers are missing.
pub fn compiled(name: &str, sources: &[(&str, &str)]) -> Result<PathBuf> {
    let cache = cache::directory()?;
    compiled_in(&cache, name, sources).map_err(|error| cache::blame(&cache, &error))
}

fn compiled_in(cache: &Path, name: &str, sources: &[(&str, &str)]) -> Result<PathBuf> {
    let parts: Vec<&[u8]> = sources.iter().map(|(_, text)| text.as_bytes()).collect();
    let dir = cache.join(format!("{name}-{}", cache::digest(&parts)));
    let program = dir.join(name);
    let _lock = cache::lock(cache)?;
    if program.exists() {
        return Ok(program);
    }
    std::fs::create_dir_all(&dir).doing(|| format!("{}", dir.display()))?;
    for (name, text) in sources {
        std::fs::write(dir.join(name), text).doing(|| format!("writing {name}"))?;
    }
    let unfinished = dir.join("unfinished");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&unfinished);
    let library = name.ends_with(".so");
    if library {
        cc.args(["-shared", "-fPIC"]);
    }
    cc.args(
        sources
            .iter()
            .filter(|(n, _)| n.ends_with(".c"))
            .map(|(n, _)| dir.join(n)),
    );
    if !library {
        cc.args(["-libverbs", "-lrdmacm"]);
    }
    let remedy = "apt-get install gcc libc6-dev libibverbs-dev librdmacm-dev";
    let out = cc
        .output()
        .doing(|| format!("the C compiler for {name} ({remedy})"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        return fail(format!("{name} does not compile ({remedy}):\n{said}"));
    }
    std::fs::rename(&unfinished, &program).doing(|| format!("keeping {name}"))?;
    Ok(program)
}

/// The guest's image, made if the scripts, the agent or the machine's packages are new.
///
/// # Errors
/// A package is missing, or the kernel cannot be fetched.
pub fn image(agent: &Path) -> Result<Image> {
    let cache = cache::directory()?;
    image_in(&cache, agent).map_err(|error| cache::blame(&cache, &error))
}

fn image_in(cache: &Path, agent: &Path) -> Result<Image> {
    let bytes = std::fs::read(agent).doing(|| "reading the agent".into())?;
    let packages = packages();
    let parts = [
        IMAGE_SH.as_bytes(),
        INIT_SH.as_bytes(),
        &bytes,
        packages.as_bytes(),
    ];
    let dir = cache.join(format!("image-{}", cache::digest(&parts)));
    let _lock = cache::lock(cache)?;
    let made = |dir: &Path| -> Option<Image> {
        let version = std::fs::read_to_string(dir.join("version")).ok()?;
        Some(Image {
            kernel: dir.join("kernel"),
            initrd: dir.join("initrd.cpio"),
            version: version.trim().to_owned(),
        })
    };
    if let Some(image) = made(&dir) {
        if whole(&dir) {
            return Ok(image);
        }
        eprintln!(
            "the guest's image in {} is spoiled: it is made anew",
            dir.display()
        );
        std::fs::remove_dir_all(&dir).doing(|| format!("removing {}", dir.display()))?;
    }
    forget_old(cache);
    std::fs::create_dir_all(&dir).doing(|| format!("{}", dir.display()))?;
    let (script, init) = (dir.join("image.sh"), dir.join("init.sh"));
    std::fs::write(&script, IMAGE_SH).doing(|| "writing image.sh".into())?;
    std::fs::write(&init, INIT_SH).doing(|| "writing init.sh".into())?;
    let mut build = Command::new("bash");
    build
        .arg(&script)
        .arg(cache.join("kernel"))
        .arg(&dir)
        .arg(agent)
        .arg(&init);
    let out = build.output().doing(|| "starting bash".into())?;
    match made(&dir) {
        Some(image) if out.status.success() => Ok(image),
        _ => {
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            let last: Vec<&str> = said.lines().rev().take(8).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            let _ = std::fs::remove_dir_all(&dir);
            fail(format!(
                "the guest's image cannot be made: {}",
                last.join("\n")
            ))
        }
    }
}

/// Is the image what it was when it was made? A disk that was full leaves half of a kernel, which boots to nothing.
fn whole(dir: &Path) -> bool {
    static CHECKED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    if checked.iter().any(|known| known == dir) {
        return true;
    }
    let mut check = Command::new("sha256sum");
    check.args(["--status", "-c", "sums"]).current_dir(dir);
    let right = check.status().is_ok_and(|status| status.success());
    if right {
        checked.push(dir.to_owned());
    }
    right
}

/// Images that nobody made or asked for within two days: each is 100 MB. Younger ones may be another tree's.
fn forget_old(cache: &Path) {
    let age = std::time::Duration::from_secs(2 * 24 * 3600);
    let old = |path: &Path| {
        let used = path.join("version").metadata().or_else(|_| path.metadata());
        let used = used.and_then(|m| m.modified()).ok();
        used.and_then(|t| t.elapsed().ok()).is_some_and(|t| t > age)
    };
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with("image-")) {
        if old(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// What the image is made of besides our own files: the versions of the packages whose programs go into it.
fn packages() -> String {
    let names = [
        "perftest",
        "ibverbs-utils",
        "ibverbs-providers",
        "rdmacm-utils",
        "libibverbs1",
        "iproute2",
        "libc6",
    ];
    let mut ask = Command::new("dpkg-query");
    ask.args(["-W", "-f", "${Package} ${Version}\n"])
        .args(names);
    let said = ask.output().map(|o| o.stdout).unwrap_or_default();
    let kernel = std::env::var_os("ROCEBUD_INTEROP_KERNEL").unwrap_or_default();
    format!(
        "{}\n{}",
        kernel.to_string_lossy(),
        String::from_utf8_lossy(&said)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_cannot_be_run_is_named_with_its_variable() {
        let of = |path: &str| named_agent(Some(path.into())).map_err(|why| why.to_string());
        assert_eq!(named_agent(None), Ok(None));
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("/bin/sh"), Ok(Some(PathBuf::from("/bin/sh"))));
        for path in ["/etc/passwd", "/etc"] {
            let why = format!("ROCEBUD_INTEROP_AGENT names {path}, which is no program");
            assert_eq!(of(path), Err(why));
        }
        let why = of("/nonexistent").unwrap_err();
        assert!(
            why.starts_with("ROCEBUD_INTEROP_AGENT names /nonexistent: No such file"),
            "{why}"
        );
    }
}
