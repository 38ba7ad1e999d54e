//! Management datagrams: 24 bytes of header that all classes share, 232 bytes of body.

use alloc::boxed::Box;

use crate::bits::{Field, at};

/// Bytes of every management datagram.
pub const MAD_LEN: usize = 256;

/// Bytes of the common header.
pub const HEADER_LEN: usize = 24;

/// Bytes after the common header.
pub const BODY_LEN: usize = MAD_LEN - HEADER_LEN;

/// The management class of communication management.
pub const CLASS_CM: u8 = 0x07;

/// The version of that class.
pub const CLASS_VERSION_CM: u8 = 2;

/// The only method of that class: nothing is got or set, everything is sent.
pub const METHOD_SEND: u8 = 0x03;

/// The common header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadHeader {
    /// Version of the header itself: 1.
    pub base_version: u8,
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method of the class; bit 7 marks a response.
    pub method: u8,
    /// Status of a response.
    pub status: u16,
    /// Transaction id: an answer echoes it. Opaque to everybody but its maker.
    pub tid: u64,
    /// Attribute: for communication management the kind of message.
    pub attr_id: u16,
    /// Attribute modifier: options of enhanced connection establishment in REQ and REP.
    pub attr_mod: u32,
}

/// Why bytes are no management datagram for the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseError {
    /// Not 256 bytes.
    Length,
    /// Base version, class or class version are not those of communication management.
    Class,
    /// A method other than Send.
    Method,
    /// An attribute that this class does not have.
    Attribute,
}

impl core::fmt::Display for ParseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Length => "a management datagram has 256 bytes",
            Self::Class => "not of the communication management class, version 2",
            Self::Method => "communication management has no method but Send",
            Self::Attribute => "communication management has no such attribute",
        })
    }
}

impl core::error::Error for ParseError {}

impl MadHeader {
    /// Header of a connection manager's message.
    #[must_use]
    pub const fn cm(attr_id: u16, tid: u64, attr_mod: u32) -> Self {
        Self {
            base_version: 1,
            class: CLASS_CM,
            class_version: CLASS_VERSION_CM,
            method: METHOD_SEND,
            status: 0,
            tid,
            attr_id,
            attr_mod,
        }
    }

    /// The header, and the body after it.
    ///
    /// # Errors
    /// [`ParseError::Length`] if `mad` does not have 256 bytes.
    pub fn parse(mad: &[u8]) -> Result<(Self, &[u8; BODY_LEN]), ParseError> {
        let (head, body) = mad.split_at_checked(HEADER_LEN).ok_or(ParseError::Length)?;
        let body = body.try_into().map_err(|_| ParseError::Length)?;
        Ok((
            Self {
                base_version: u8::read(head, &[at(0, 0, 8)]),
                class: u8::read(head, &[at(1, 0, 8)]),
                class_version: u8::read(head, &[at(2, 0, 8)]),
                method: u8::read(head, &[at(3, 0, 8)]),
                status: u16::read(head, &[at(4, 0, 16)]),
                tid: u64::read(head, &[at(8, 0, 64)]),
                attr_id: u16::read(head, &[at(16, 0, 16)]),
                attr_mod: u32::read(head, &[at(20, 0, 32)]),
            },
            body,
        ))
    }

    /// A whole datagram of this header and `body`.
    #[must_use]
    pub fn emit(&self, body: &[u8; BODY_LEN]) -> Box<[u8; MAD_LEN]> {
        let mut mad = Box::new([0; MAD_LEN]);
        let (head, rest) = mad.split_at_mut(HEADER_LEN);
        self.base_version.write(head, &[at(0, 0, 8)]);
        self.class.write(head, &[at(1, 0, 8)]);
        self.class_version.write(head, &[at(2, 0, 8)]);
        self.method.write(head, &[at(3, 0, 8)]);
        self.status.write(head, &[at(4, 0, 16)]);
        self.tid.write(head, &[at(8, 0, 64)]);
        self.attr_id.write(head, &[at(16, 0, 16)]);
        self.attr_mod.write(head, &[at(20, 0, 32)]);
        rest.copy_from_slice(body);
        mad
    }
}
