//! What a verbs call answers when its caller is at fault.

/// A positive Linux errno value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

#[allow(missing_docs, reason = "the names are those of errno(3)")]
impl Errno {
    pub const EPERM: Self = Self(1);
    pub const ENOENT: Self = Self(2);
    pub const EIO: Self = Self(5);
    pub const EBADF: Self = Self(9);
    pub const EAGAIN: Self = Self(11);
    pub const ENOMEM: Self = Self(12);
    pub const EACCES: Self = Self(13);
    pub const EFAULT: Self = Self(14);
    pub const EBUSY: Self = Self(16);
    pub const ENODEV: Self = Self(19);
    pub const EINVAL: Self = Self(22);
    pub const ENFILE: Self = Self(23);
    pub const EMFILE: Self = Self(24);
    pub const ENOSYS: Self = Self(38);
    pub const ENODATA: Self = Self(61);
    pub const EPROTONOSUPPORT: Self = Self(93);
    pub const EOPNOTSUPP: Self = Self(95);
    pub const EADDRINUSE: Self = Self(98);
    pub const ENETUNREACH: Self = Self(101);
    pub const ETIMEDOUT: Self = Self(110);
    pub const EHOSTUNREACH: Self = Self(113);
}

/// A refused call: the errno that rdma-core would give, and a sentence for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misuse {
    /// What the call returns.
    pub errno: Errno,
    /// Who is at fault and what to do, for logs and `rocebud status`.
    pub why: &'static str,
}

impl Misuse {
    /// A refusal with `errno`.
    #[must_use]
    pub const fn new(errno: Errno, why: &'static str) -> Self {
        Self { errno, why }
    }

    /// The most common refusal.
    #[must_use]
    pub const fn invalid(why: &'static str) -> Self {
        Self::new(Errno::EINVAL, why)
    }
}

impl core::fmt::Display for Misuse {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} (errno {})", self.why, self.errno.0)
    }
}

impl core::error::Error for Misuse {}
