//! Immediate data: what each message means. Three bits of type, 29 of data.

/// Bits of the data.
const DATA_BITS: u32 = 29;
const DATA_MASK: u32 = (1 << DATA_BITS) - 1;

const DATA: u32 = 0;
const SGL: u32 = 4;
const IOMAP: u32 = 6;
const CTRL: u32 = 7;

/// A control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// Neither end sends data any more.
    Disconnect,
    /// The sender of this sends no more data.
    Shutdown,
}

const CONTROL_DISCONNECT: u32 = 0;
const CONTROL_SHUTDOWN: u32 = 2;

/// A message by its immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// So many bytes were written where the last ones ended. At most 2^29 − 1.
    Data(u32),
    /// The peer may send until its count of messages is this; an entry of the target list may
    /// have been written too.
    Credit(u16),
    /// The entry of this index of the iomap table was written.
    Iomap(u32),
    /// Shutdown or disconnect.
    Control(Control),
    /// A type or a control code that no peer sends.
    Unknown(u32),
}

impl Message {
    /// Reads an immediate (as a number; it is big-endian on the wire).
    #[must_use]
    pub const fn parse(immediate: u32) -> Self {
        let data = immediate & DATA_MASK;
        match (immediate >> DATA_BITS, data) {
            (DATA, n) => Self::Data(n),
            // The limit is the low half; upstream looks at nothing else.
            (SGL, n) => Self::Credit(n as u16),
            (IOMAP, index) => Self::Iomap(index),
            (CTRL, CONTROL_DISCONNECT) => Self::Control(Control::Disconnect),
            (CTRL, CONTROL_SHUTDOWN) => Self::Control(Control::Shutdown),
            _ => Self::Unknown(immediate),
        }
    }

    /// The immediate to send.
    #[must_use]
    pub const fn immediate(self) -> u32 {
        let (kind, data) = match self {
            Self::Data(n) => (DATA, n),
            Self::Credit(limit) => (SGL, limit as u32),
            Self::Iomap(index) => (IOMAP, index),
            Self::Control(Control::Disconnect) => (CTRL, CONTROL_DISCONNECT),
            Self::Control(Control::Shutdown) => (CTRL, CONTROL_SHUTDOWN),
            Self::Unknown(all) => return all,
        };
        (kind << DATA_BITS) | (data & DATA_MASK)
    }
}

#[cfg(test)]
mod tests;
