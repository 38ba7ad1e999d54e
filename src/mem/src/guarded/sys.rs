//! The routines and their exception table.
//!
//! Proof: the tests of this crate let every routine fault in the middle, at both ends and in many
//! threads; they also pass under AddressSanitizer.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use other::*;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::global_asm;
    use std::sync::atomic::{AtomicU8, Ordering};

    // Conventions: every copy takes rdi = to, rsi = from, rdx = bytes, and keeps rdx at what is
    // left before each access that may fault; it returns that. No `rep movsb`: some processors
    // crawl when the two ends lie a few bytes off modulo a page.
    global_asm!(
        ".pushsection .text.rocebud_mem,\"ax\",@progbits",
        // Any length, 16 bytes at a time.
        ".p2align 5",
        ".globl rocebud_mem_copy",
        ".hidden rocebud_mem_copy",
        "rocebud_mem_copy:",
        "cmp rdx, 64",
        "jb 3f",
        ".p2align 4",
        "2:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "jae 2b",
        "3:",
        "test dl, 32",
        "jz 4f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "add rsi, 32",
        "add rdi, 32",
        "sub rdx, 32",
        "4:",
        "test dl, 16",
        "jz 5f",
        "movups xmm0, [rsi]",
        "movups [rdi], xmm0",
        "add rsi, 16",
        "add rdi, 16",
        "sub rdx, 16",
        "5:",
        "test dl, 8",
        "jz 6f",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "add rsi, 8",
        "add rdi, 8",
        "sub rdx, 8",
        "6:",
        "test dl, 4",
        "jz 7f",
        "mov eax, [rsi]",
        "mov [rdi], eax",
        "add rsi, 4",
        "add rdi, 4",
        "sub rdx, 4",
        "7:",
        "test dl, 2",
        "jz 8f",
        "movzx eax, word ptr [rsi]",
        "mov [rdi], ax",
        "add rsi, 2",
        "add rdi, 2",
        "sub rdx, 2",
        "8:",
        "test dl, 1",
        "jz 9f",
        "movzx eax, byte ptr [rsi]",
        "mov [rdi], al",
        "sub rdx, 1",
        "9:",
        ".globl rocebud_mem_left",
        ".hidden rocebud_mem_left",
        "rocebud_mem_left:",
        "mov rax, rdx",
        "ret",
        // Multiples of 128 bytes, at least one, with AVX.
        ".p2align 5",
        ".globl rocebud_mem_bulk",
        ".hidden rocebud_mem_bulk",
        "rocebud_mem_bulk:",
        "vmovdqu ymm0, [rsi]",
        "vmovdqu ymm1, [rsi + 32]",
        "vmovdqu ymm2, [rsi + 64]",
        "vmovdqu ymm3, [rsi + 96]",
        "vmovdqu [rdi], ymm0",
        "vmovdqu [rdi + 32], ymm1",
        "vmovdqu [rdi + 64], ymm2",
        "vmovdqu [rdi + 96], ymm3",
        "sub rsi, -128",
        "sub rdi, -128",
        "add rdx, -128",
        "jnz rocebud_mem_bulk",
        ".globl rocebud_mem_bulk_left",
        ".hidden rocebud_mem_bulk_left",
        "rocebud_mem_bulk_left:",
        "mov rax, rdx",
        "vzeroupper",
        "ret",
        // Byte by byte: finds the end of the good part after a fault of the others.
        ".globl rocebud_mem_bytes",
        ".hidden rocebud_mem_bytes",
        "rocebud_mem_bytes:",
        "test rdx, rdx",
        "jz 3f",
        "2:",
        "movzx eax, byte ptr [rsi]",
        "mov [rdi], al",
        "inc rsi",
        "inc rdi",
        "dec rdx",
        "jnz 2b",
        "3:",
        "mov rax, rdx",
        "ret",
        // One word: eax = 0, or 1 after a fault.
        ".globl rocebud_mem_cmp_swap",
        ".hidden rocebud_mem_cmp_swap",
        "rocebud_mem_cmp_swap:",
        "mov rax, rsi",
        "lock cmpxchg [rdi], rdx",
        "mov [rcx], rax",
        "xor eax, eax",
        "ret",
        ".globl rocebud_mem_fetch_add",
        ".hidden rocebud_mem_fetch_add",
        "rocebud_mem_fetch_add:",
        "lock xadd [rdi], rsi",
        "mov [rdx], rsi",
        "xor eax, eax",
        "ret",
        ".globl rocebud_mem_load",
        ".hidden rocebud_mem_load",
        "rocebud_mem_load:",
        "mov rax, [rdi]",
        "mov [rsi], rax",
        "xor eax, eax",
        "ret",
        ".globl rocebud_mem_store",
        ".hidden rocebud_mem_store",
        "rocebud_mem_store:",
        "mov [rdi], rsi",
        "xor eax, eax",
        "ret",
        ".globl rocebud_mem_touch",
        ".hidden rocebud_mem_touch",
        "rocebud_mem_touch:",
        "test esi, esi",
        "jz 2f",
        "lock or byte ptr [rdi], 0",
        "2:",
        "movzx eax, byte ptr [rdi]",
        "xor eax, eax",
        "ret",
        ".globl rocebud_mem_refused",
        ".hidden rocebud_mem_refused",
        "rocebud_mem_refused:",
        "mov eax, 1",
        "ret",
        ".popsection",
    );

    unsafe extern "sysv64" {
        fn rocebud_mem_copy(to: usize, from: usize, len: usize) -> usize;
        fn rocebud_mem_bulk(to: usize, from: usize, len: usize) -> usize;
        fn rocebud_mem_bytes(to: usize, from: usize, len: usize) -> usize;
        fn rocebud_mem_cmp_swap(addr: usize, compare: u64, swap: u64, before: *mut u64) -> u32;
        fn rocebud_mem_fetch_add(addr: usize, add: u64, before: *mut u64) -> u32;
        fn rocebud_mem_load(addr: usize, value: *mut u64) -> u32;
        fn rocebud_mem_store(addr: usize, value: u64) -> u32;
        fn rocebud_mem_touch(addr: usize, write: u32) -> u32;
        static rocebud_mem_left: u8;
        static rocebud_mem_bulk_left: u8;
        static rocebud_mem_refused: u8;
    }

    /// Where to go on after a fault at `pc`, if that is in one of our routines.
    ///
    /// Called by the signal handlers: it only compares addresses. The routines lie in one section
    /// in the order in which they are written.
    pub(crate) fn resume_at(pc: usize) -> Option<usize> {
        let copy = rocebud_mem_copy as *const () as usize;
        let left = (&raw const rocebud_mem_left) as usize;
        let bulk = rocebud_mem_bulk as *const () as usize;
        let bulk_left = (&raw const rocebud_mem_bulk_left) as usize;
        let bytes = rocebud_mem_bytes as *const () as usize;
        let words = rocebud_mem_cmp_swap as *const () as usize;
        let refused = (&raw const rocebud_mem_refused) as usize;
        [
            (copy..left, left),
            (bulk..bulk_left, bulk_left),
            (bytes..words, left),
            (words..refused, refused),
        ]
        .into_iter()
        .find_map(|(range, fixup)| range.contains(&pc).then_some(fixup))
    }

    /// Copies into our own memory; returns the bytes copied. A short count is a fault.
    pub(crate) fn copy_in(dst: &mut [u8], src_addr: usize) -> usize {
        // SAFETY: `dst` is writable for its length; the source may be anything.
        unsafe { copy(dst.as_mut_ptr() as usize, src_addr, dst.len()) }
    }

    /// Copies from our own memory; returns the bytes copied. A short count is a fault.
    pub(crate) fn copy_out(dst_addr: usize, src: &[u8]) -> usize {
        // SAFETY: the caller (the key table of the runtime) vouches that `dst_addr` is memory
        // which the application gave us to write; whether it is there is found out on the way.
        unsafe { copy(dst_addr, src.as_ptr() as usize, src.len()) }
    }

    /// # Safety
    /// Writing `len` bytes at `to` must break no promise to the compiler: it is our own buffer, or
    /// memory that the application registered and that no Rust reference covers.
    unsafe fn copy(to: usize, from: usize, len: usize) -> usize {
        let mut at = 0;
        if len >= BULK_MIN && has_avx() {
            // Aligned stores do not straddle cache lines.
            let head = to.wrapping_neg() % 32;
            // SAFETY: by contract; faults are caught.
            at += head - unsafe { rocebud_mem_copy(to, from, head) };
            let bulk = (len - head) & !127;
            if at == head {
                // SAFETY: by contract; `bulk` is a multiple of 128 and not 0; AVX is there.
                at += bulk - unsafe { rocebud_mem_bulk(to + at, from.wrapping_add(at), bulk) };
            }
            if at != head + bulk {
                // SAFETY: by contract.
                return at + unsafe { good_part(to + at, from.wrapping_add(at), len - at) };
            }
        }
        // SAFETY: by contract; faults are caught.
        let left = unsafe { rocebud_mem_copy(to + at, from.wrapping_add(at), len - at) };
        at = len - left;
        if left == 0 {
            return len;
        }
        // SAFETY: by contract.
        at + unsafe { good_part(to + at, from.wrapping_add(at), left) }
    }

    /// Copies up to the faulting byte; returns how many.
    ///
    /// # Safety
    /// As for `copy`.
    #[cold]
    unsafe fn good_part(to: usize, from: usize, len: usize) -> usize {
        // SAFETY: by contract; faults are caught.
        len - unsafe { rocebud_mem_bytes(to, from, len) }
    }

    /// From here on AVX pays.
    const BULK_MIN: usize = 256;

    fn has_avx() -> bool {
        // Cached here: the standard library's answer costs a little more, on every copy.
        static AVX: AtomicU8 = AtomicU8::new(2);
        match AVX.load(Ordering::Relaxed) {
            2 => {
                let yes = std::arch::is_x86_feature_detected!("avx");
                AVX.store(u8::from(yes), Ordering::Relaxed);
                yes
            }
            known => known == 1,
        }
    }

    /// Compares and swaps an aligned word; None after a fault.
    pub(crate) fn cmp_swap(addr: usize, compare: u64, swap: u64) -> Option<u64> {
        let mut before = 0;
        // SAFETY: `before` is ours; for `addr` see `copy_out`. Faults are caught.
        let rc = unsafe { rocebud_mem_cmp_swap(addr, compare, swap, &raw mut before) };
        (rc == 0).then_some(before)
    }

    /// Adds to an aligned word; None after a fault.
    pub(crate) fn fetch_add(addr: usize, add: u64) -> Option<u64> {
        let mut before = 0;
        // SAFETY: `before` is ours; for `addr` see `copy_out`. Faults are caught.
        let rc = unsafe { rocebud_mem_fetch_add(addr, add, &raw mut before) };
        (rc == 0).then_some(before)
    }

    /// Loads an aligned word; None after a fault.
    pub(crate) fn load(addr: usize) -> Option<u64> {
        let mut value = 0;
        // SAFETY: `value` is ours; the source may be anything. Faults are caught.
        let rc = unsafe { rocebud_mem_load(addr, &raw mut value) };
        (rc == 0).then_some(value)
    }

    /// Stores an aligned word; false after a fault.
    pub(crate) fn store(addr: usize, value: u64) -> bool {
        // SAFETY: for `addr` see `copy_out`. Faults are caught.
        unsafe { rocebud_mem_store(addr, value) == 0 }
    }

    /// Reads a byte, and with `write` also writes what is there; false after a fault.
    pub(crate) fn touch(addr: usize, write: bool) -> bool {
        // SAFETY: the contents do not change (an atomic OR with 0). Faults are caught.
        unsafe { rocebud_mem_touch(addr, u32::from(write)) == 0 }
    }
}

/// Without routines of our own: the kernel copies, and words are checked before use. A page that
/// goes away between check and use still ends the process.
#[cfg(not(target_arch = "x86_64"))]
mod other {
    use crate::vm;
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(crate) fn resume_at(_pc: usize) -> Option<usize> {
        None
    }

    pub(crate) fn copy_in(dst: &mut [u8], src_addr: usize) -> usize {
        vm::read(dst, src_addr).unwrap_or(0)
    }

    pub(crate) fn copy_out(dst_addr: usize, src: &[u8]) -> usize {
        vm::write(dst_addr, src).unwrap_or(0)
    }

    fn with<R>(addr: usize, write: bool, access: impl FnOnce(&AtomicU64) -> R) -> Option<R> {
        if !vm::populate(addr, addr.checked_add(7)?, write) {
            return None;
        }
        // SAFETY: aligned (the caller checked), mapped and accessible a moment ago; see
        // `copy_out` of the other architecture for whose memory it is.
        Some(access(unsafe { AtomicU64::from_ptr(addr as *mut u64) }))
    }

    pub(crate) fn cmp_swap(addr: usize, compare: u64, swap: u64) -> Option<u64> {
        with(addr, true, |word| {
            match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(before) | Err(before) => before,
            }
        })
    }

    pub(crate) fn fetch_add(addr: usize, add: u64) -> Option<u64> {
        with(addr, true, |word| word.fetch_add(add, Ordering::SeqCst))
    }

    pub(crate) fn load(addr: usize) -> Option<u64> {
        with(addr, false, |word| word.load(Ordering::Acquire))
    }

    pub(crate) fn store(addr: usize, value: u64) -> bool {
        with(addr, true, |word| word.store(value, Ordering::Release)).is_some()
    }

    pub(crate) fn touch(addr: usize, write: bool) -> bool {
        vm::populate(addr, addr, write)
    }
}
