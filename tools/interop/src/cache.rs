//! What is made once and kept: the compiled agent, the kernel package, the guest's image.
//!
//! `$ROCEBUD_INTEROP_CACHE`, else `$XDG_CACHE_HOME/rocebud/interop`, else `~/.cache/rocebud/interop`.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Doing, Error, Result};

/// The directory, made if it is missing.
///
/// # Errors
/// It cannot be made.
pub fn directory() -> Result<PathBuf> {
    directory_by(|name| std::env::var_os(name))
}

fn directory_by(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let from = |name| variable(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let named = from("ROCEBUD_INTEROP_CACHE");
    let whose = match named {
        Some(_) => ", which ROCEBUD_INTEROP_CACHE names",
        None => " (ROCEBUD_INTEROP_CACHE names another place)",
    };
    let path = named
        .or_else(|| from("XDG_CACHE_HOME").map(|d| d.join("rocebud/interop")))
        .or_else(|| from("HOME").map(|d| d.join(".cache/rocebud/interop")))
        .unwrap_or_else(|| std::env::temp_dir().join("rocebud-interop"));
    std::fs::create_dir_all(&path).doing(|| format!("the cache {}{whose}", path.display()))?;
    Ok(path)
}

/// What went wrong in the cache, with where that is where it may be the place's fault.
pub fn blame(cache: &Path, error: &Error) -> Error {
    let Error(why) = error;
    let place = [
        "No space left",
        "Permission denied",
        "Read-only file system",
    ];
    if !place.iter().any(|word| why.contains(word)) {
        return error.clone();
    }
    let cache = cache.display();
    Error(format!(
        "the cache {cache} (ROCEBUD_INTEROP_CACHE names another place): {why}"
    ))
}

/// Held while something in the cache is made; others wait.
#[derive(Debug)]
pub struct Lock {
    _file: Option<File>,
}

/// Waits until nobody else makes something in the cache. Where this process may not write what is there can
/// be used all the same, and whoever may write there and makes something is waited for, if he shows.
///
/// # Errors
/// The lock file cannot be made, or locked.
pub fn lock(cache: &Path) -> Result<Lock> {
    let path = cache.join("lock");
    let made = match File::create(&path) {
        Err(error) if is_closed(&error) => File::open(&path).ok(),
        made => Some(made.doing(|| format!("{}", path.display()))?),
    };
    if let Some(file) = &made {
        rustix::fs::flock(file, rustix::fs::FlockOperation::LockExclusive)
            .doing(|| format!("locking {}", path.display()))?;
    }
    Ok(Lock { _file: made })
}

/// Nothing can be written there.
fn is_closed(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    [PermissionDenied, ReadOnlyFilesystem].contains(&error.kind())
}

/// A name for these contents: FNV-1a, 64 bits. It tells versions apart, nothing more.
pub fn digest(parts: &[&[u8]]) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in parts.iter().flat_map(|p| p.iter().chain(&[0xff])) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_is_named_with_the_variable_that_names_one() {
        let of = |set: &'static str| {
            let variable = move |name: &str| (name == set).then(|| "/proc/nowhere".into());
            directory_by(variable).unwrap_err().to_string()
        };
        assert!(of("ROCEBUD_INTEROP_CACHE").starts_with(
            "the cache /proc/nowhere, which ROCEBUD_INTEROP_CACHE names: No such file"
        ));
        assert!(of("HOME").starts_with(
            "the cache /proc/nowhere/.cache/rocebud/interop (ROCEBUD_INTEROP_CACHE names another place): No such file"
        ));
    }
}
