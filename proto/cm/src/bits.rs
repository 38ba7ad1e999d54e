//! Fields of a message body at bit positions, counted from the most significant bit as the
//! specification does. Total: what lies outside the body reads as 0 and is not written.

use rocebud_wire::{Gid, PKey, Psn, QKey, Qpn};

/// A run of bits of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    bit: usize,
    width: usize,
}

/// `width` bits, the first of which is bit `bit` (0 = most significant) of byte `byte`.
pub(crate) const fn at(byte: usize, bit: usize, width: usize) -> Piece {
    Piece {
        bit: byte * 8 + bit,
        width,
    }
}

impl Piece {
    /// The byte in which the piece begins.
    const fn byte(self) -> usize {
        self.bit / 8
    }

    /// One past the byte in which it ends.
    const fn end(self) -> usize {
        (self.bit + self.width).div_ceil(8)
    }

    /// Bits between the end of the piece and the end of its last byte.
    const fn shift(self) -> usize {
        self.end() * 8 - self.bit - self.width
    }

    const fn mask(self) -> u128 {
        if self.width >= 128 {
            u128::MAX
        } else {
            (1 << self.width) - 1
        }
    }

    fn load(self, body: &[u8]) -> u128 {
        let bytes = body.get(self.byte()..self.end()).unwrap_or(&[]);
        bytes
            .iter()
            .fold(0, |value, &byte| value << 8 | u128::from(byte))
    }

    fn get(self, body: &[u8]) -> u128 {
        self.load(body) >> self.shift() & self.mask()
    }

    fn put(self, body: &mut [u8], value: u128) {
        let mask = self.mask() << self.shift();
        let mut word = self.load(body) & !mask | value << self.shift() & mask;
        let bytes = body.get_mut(self.byte()..self.end()).unwrap_or(&mut []);
        for byte in bytes.iter_mut().rev() {
            *byte = word.to_be_bytes()[15];
            word >>= 8;
        }
    }
}

/// The pieces, put together from the most significant one.
fn get(body: &[u8], pieces: &[Piece]) -> u128 {
    pieces.iter().fold(0, |value, piece| {
        value << (piece.width % 128) | piece.get(body)
    })
}

fn put(body: &mut [u8], pieces: &[Piece], mut value: u128) {
    for piece in pieces.iter().rev() {
        piece.put(body, value);
        value = value.checked_shr(piece.width as u32).unwrap_or(0);
    }
}

/// What a message can have as a field.
pub(crate) trait Field: Sized {
    fn read(body: &[u8], pieces: &[Piece]) -> Self;
    fn write(&self, body: &mut [u8], pieces: &[Piece]);
}

macro_rules! number {
    ($($type:ty: $from:expr, $into:expr;)*) => {$(
        impl Field for $type {
            fn read(body: &[u8], pieces: &[Piece]) -> Self {
                let from: fn(u128) -> Self = $from;
                from(get(body, pieces))
            }

            fn write(&self, body: &mut [u8], pieces: &[Piece]) {
                let into: fn(&Self) -> u128 = $into;
                put(body, pieces, into(self));
            }
        }
    )*};
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "a piece is never wider than the type of its field"
)]
mod numbers {
    use super::*;

    number! {
        bool: |v| v != 0, |v| u128::from(*v);
        u8: |v| v as Self, |v| u128::from(*v);
        u16: |v| v as Self, |v| u128::from(*v);
        u32: |v| v as Self, |v| u128::from(*v);
        u64: |v| v as Self, |v| u128::from(*v);
        Qpn: |v| Self::new(v as u32), |v| u128::from(v.value());
        Psn: |v| Self::new(v as u32), |v| u128::from(v.value());
        QKey: |v| Self(v as u32), |v| u128::from(v.0);
        PKey: |v| Self(v as u16), |v| u128::from(v.0);
        Gid: |v| Self(v.to_be_bytes()), |v| u128::from_be_bytes(v.0);
    }
}

impl<const N: usize> Field for [u8; N] {
    fn read(body: &[u8], pieces: &[Piece]) -> Self {
        let mut value = [0; N];
        for (to, from) in value.iter_mut().zip(tail(body, pieces)) {
            *to = *from;
        }
        value
    }

    fn write(&self, body: &mut [u8], pieces: &[Piece]) {
        let start = pieces.first().map_or(body.len(), |p| p.byte());
        for (to, from) in body.iter_mut().skip(start).zip(self) {
            *to = *from;
        }
    }
}

/// The body from where the first piece begins.
pub(crate) fn tail<'a>(body: &'a [u8], pieces: &[Piece]) -> &'a [u8] {
    let start = pieces.first().map_or(body.len(), |p| p.byte());
    body.get(start..).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_and_written_in_place() {
        let mut body = [0_u8; 8];
        put(&mut body, &[at(1, 3, 7)], 0x55);
        assert_eq!(body, [0, 0b0001_0101, 0b0100_0000, 0, 0, 0, 0, 0]);
        assert_eq!(get(&body, &[at(1, 3, 7)]), 0x55);
        put(
            &mut body,
            &[at(0, 0, 8), at(3, 0, 8), at(5, 0, 8)],
            0xa1_b2c3,
        );
        assert_eq!(body, [0xa1, 0x15, 0x40, 0xb2, 0, 0xc3, 0, 0]);
        assert_eq!(
            get(&body, &[at(0, 0, 8), at(3, 0, 8), at(5, 0, 8)]),
            0xa1_b2c3
        );
    }

    #[test]
    fn what_lies_outside_reads_as_nothing() {
        let mut body = [0xff_u8; 4];
        assert_eq!(get(&body, &[at(3, 0, 16)]), 0);
        put(&mut body, &[at(3, 0, 16)], 0);
        assert_eq!(body, [0xff; 4]);
        assert_eq!(<[u8; 3]>::read(&body, &[at(3, 0, 24)]), [0xff, 0, 0]);
    }

    #[test]
    fn a_gid_fills_128_bits() {
        let gid = Gid::from_v4([10, 98, 0, 11]);
        let mut body = [0; 20];
        gid.write(&mut body, &[at(4, 0, 128)]);
        assert_eq!(Gid::read(&body, &[at(4, 0, 128)]), gid);
        assert_eq!(&body[..4], [0; 4]);
    }
}
