//! Unpredictable numbers: keys and queue pair numbers are the whole defence against strangers.

/// 32 bits from the kernel's generator.
pub(crate) fn u32() -> u32 {
    let mut bytes = [0; 4];
    fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

fn fill(bytes: &mut [u8]) {
    if getrandom::fill(bytes).is_ok() {
        return;
    }
    // Only in a sandbox that forbids getrandom and hides /dev/urandom. Unpredictable is better
    // than dead: the standard library's hasher keys come from the same sources or from addresses.
    use std::hash::{BuildHasher, RandomState};
    for chunk in bytes.chunks_mut(8) {
        let word = RandomState::new().hash_one(crate::sys::monotonic_ns());
        for (to, from) in chunk.iter_mut().zip(word.to_ne_bytes()) {
            *to = from;
        }
    }
}
