//! Instructions of classic BPF programs.

/// One instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Insn {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

impl Insn {
    pub(crate) const fn new(code: u32, jt: u8, jf: u8, k: u32) -> Self {
        Self {
            code: code as u16,
            jt,
            jf,
            k,
        }
    }

    /// Ends the program with a constant.
    pub(crate) const fn ret(k: u32) -> Self {
        Self::new(libc::BPF_RET | libc::BPF_K, 0, 0, k)
    }
}
