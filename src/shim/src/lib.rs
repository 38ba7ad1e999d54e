//! Preload shim: shows the tree at `$ROCEBUD_SYSFS` in place of `/sys/class/infiniband*` and
//! `/dev/infiniband`, for programs that look there past the verbs API (UCX, NCCL, pyverbs).
//!
//! It also tells the library what the program does to SIGSEGV and SIGBUS (`ffi::signals`), and that it
//! ends where no handler of the C library's hears of it (`ffi::endings`).
//!
//! The tree mirrors absolute paths (`$ROCEBUD_SYSFS/sys/class/infiniband/…`). What it does not
//! hold is looked up at the true path, so that real devices stay visible. Without the variable
//! every function here is a plain call of the C library's. Nothing here allocates, locks or
//! calls std: these functions run inside anybody's `open`, memory allocators' included.

mod ffi;
mod map;
