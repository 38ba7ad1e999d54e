//! The C ABI of libibverbs and librdmacm over safe verbs.
//!
//! `ffi` is the boundary: the only unsafe code, a file per kind of object. `words` are the
//! tables behind the `*_str` and rate functions. The list of exported symbols with their version
//! nodes is `symbols.txt`; `link.sh` turns the static library into what programs load.

mod ffi;
mod turn;
mod words;
