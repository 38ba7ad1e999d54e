//! Which runtime is this process's.
//!
//! The place for it may be locked by a thread that a child made by fork does not have, so every
//! generation has a place of its own.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use rocebud_objects::Misuse;

use crate::runtime::Runtime;
use crate::sync::{lock, try_lock};
use crate::{fork, sys};

/// A generation's place.
struct Place {
    generation: u64,
    runtime: Mutex<Option<Arc<Runtime>>>,
}

/// Places are never freed: one a generation.
static PLACE: AtomicPtr<Place> = AtomicPtr::new(std::ptr::null_mut());

/// The runtime, if there is one and nobody is just making it. For whoever must not wait.
pub(crate) fn get() -> Option<Arc<Runtime>> {
    let place = known().filter(|place| place.generation == fork::generation())?;
    try_lock(&place.runtime)?.clone()
}

/// The runtime, made by `make` if there is none or if it is `useless`.
pub(crate) fn get_or(
    useless: impl Fn(&Runtime) -> bool,
    make: impl FnOnce(u64) -> Result<Arc<Runtime>, Misuse>,
) -> Result<Arc<Runtime>, Misuse> {
    let place = place();
    let mut current = lock(&place.runtime);
    if let Some(runtime) = current.as_ref().filter(|runtime| !useless(runtime)) {
        return Ok(Arc::clone(runtime));
    }
    let runtime = make(place.generation)?;
    *current = Some(Arc::clone(&runtime));
    // In a child nobody may run its destructor: the descriptors in it have been closed.
    std::mem::forget(Arc::clone(&runtime));
    Ok(runtime)
}

fn known() -> Option<&'static Place> {
    sys::leaked(PLACE.load(Ordering::Acquire))
}

/// The place of this process's generation, which begins if need be.
fn place() -> &'static Place {
    loop {
        let known = known();
        let last = known.map_or(fork::NONE, |place| place.generation);
        match fork::generation() {
            fork::NONE => {
                if fork::begin(last + 1) {
                    let place = Box::leak(Box::new(Place {
                        generation: last + 1,
                        runtime: Mutex::new(None),
                    }));
                    PLACE.store(place, Ordering::Release);
                    return place;
                }
            }
            now if now == last => {
                if let Some(place) = known {
                    return place;
                }
            }
            // Another thread has just begun it and is about to say where.
            _ => sys::yield_now(),
        }
    }
}
