//! What applications wait for.

/// Who is to act.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alarm {
    /// An end posts its next requests.
    Send(usize),
    /// A pool posts its late receives.
    Pool(usize),
    /// A broken link takes its next step.
    Link(usize),
    /// Something happens that no application asked for.
    Weather,
}

impl Alarm {
    pub(crate) const fn token(self) -> u64 {
        match self {
            Self::Send(i) => i as u64,
            Self::Pool(i) => 1 << 32 | i as u64,
            Self::Link(i) => 2 << 32 | i as u64,
            Self::Weather => 3 << 32,
        }
    }

    pub(crate) const fn from_token(token: u64) -> Self {
        let index = (token & 0xffff_ffff) as usize;
        match token >> 32 {
            0 => Self::Send(index),
            1 => Self::Pool(index),
            2 => Self::Link(index),
            _ => Self::Weather,
        }
    }
}
