//! A frame on the simulated wire: IP addressing and the UDP payload with its real ICRC.

use rocebud_engine::{RxMeta, Transmit};
use rocebud_objects::Path;
use rocebud_wire::{Gid, Qpn, UDP_PORT, icrc};

/// How a host numbers its IPv4 packets, and so what a receiver has to recover.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IdRule {
    /// Rising numbers, seen by the receiver: a NIC or a packet socket.
    #[default]
    Rising,
    /// Position in the batch that the frame left in, not seen by the receiver: a UDP socket.
    BatchIndex,
}

/// Highest identification that a UDP-socket sender uses: batches are at most 64 segments.
const BATCH_ID_MAX: u16 = 127;

/// A frame under way.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Unique in a run, in order of sending; copies share it.
    pub number: u64,
    /// Sender's address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// IPv4 identification.
    pub id: u16,
    /// IPv4 flags and fragment offset.
    pub flags: u16,
    /// UDP source port.
    pub sport: u16,
    /// What the receiver may know of `id`.
    pub id_rule: IdRule,
    /// Queue pair that sent it: for observers, not on the wire.
    pub src_qp: Qpn,
    /// The engine says that it was sent before.
    pub retransmit: bool,
    /// Made by nobody's engine.
    pub forged: bool,
    /// BTH to ICRC.
    pub bytes: Vec<u8>,
    /// The bytes before a fault rule changed them.
    pub pristine: Option<Vec<u8>>,
}

/// What a receiver made of a frame's ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verified {
    /// Right; the identification and flags as the receiver knows them.
    Good {
        /// IPv4 identification; 0 for IPv6.
        id: u16,
        /// IPv4 flags and fragment offset; 0 for IPv6.
        flags: u16,
    },
    /// Wrong.
    Bad,
    /// Right although the bytes are not those that were sent. No engine is to blame: 32 bits of
    /// check cannot see everything.
    Undetected,
}

impl Frame {
    /// Wraps what an engine transmitted and seals it.
    #[must_use]
    pub fn seal(t: &Transmit, bytes: &[u8], id: u16, id_rule: IdRule) -> Self {
        let mut frame = Self {
            number: 0,
            src: t.path.sgid,
            dst: t.path.dgid,
            traffic_class: t.path.traffic_class,
            hop_limit: t.path.hop_limit,
            id,
            flags: icrc::DF,
            sport: t.sport,
            id_rule,
            src_qp: t.src_qp,
            retransmit: t.retransmit,
            forged: false,
            bytes: bytes.to_vec(),
            pristine: None,
        };
        let covered = icrc::covered(bytes);
        let crc = match frame.v4() {
            Some(header) => icrc::v4(&header, covered),
            None => icrc::v6(&frame.v6(), covered),
        };
        icrc::seal(crc, &mut frame.bytes);
        frame
    }

    /// A well-sealed frame with any content, as a stranger could send it.
    #[must_use]
    pub fn forge(path: Path, sport: u16, bytes: &[u8]) -> Self {
        let transmit = Transmit {
            len: bytes.len(),
            path,
            sport,
            dest_qp: Qpn::new(0),
            src_qp: Qpn::new(0),
            retransmit: false,
            lost: false,
        };
        Self {
            forged: true,
            ..Self::seal(&transmit, bytes, 0, IdRule::Rising)
        }
    }

    /// Checks the ICRC as a receiver does.
    #[must_use]
    pub fn verify(&self) -> Verified {
        let known = match self.v4() {
            Some(header) => {
                let id = match self.id_rule {
                    IdRule::Rising => icrc::Id::Known {
                        id: self.id,
                        flags_frag: self.flags,
                    },
                    IdRule::BatchIndex => icrc::Id::Unknown {
                        guess: 0,
                        max: BATCH_ID_MAX,
                    },
                };
                icrc::verify_v4(&header, id, &self.bytes).map(|r| (r.id, r.flags_frag))
            }
            None => icrc::verify_v6(&self.v6(), &self.bytes).then_some((0, 0)),
        };
        match known {
            None => Verified::Bad,
            Some(_) if self.really_damaged() => Verified::Undetected,
            Some((id, flags)) => Verified::Good { id, flags },
        }
    }

    /// The frame's meta-data as a link hands them to the engine.
    #[must_use]
    pub fn meta(&self, id: u16, flags: u16) -> RxMeta {
        RxMeta {
            src: self.src,
            dst: self.dst,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            ipv4_id: id,
            ipv4_flags: flags,
            ifindex: 1,
            sport: self.sport,
        }
    }

    /// Flips a bit of BTH..ICRC.
    pub fn flip(&mut self, bit: usize) {
        if self.pristine.is_none() {
            self.pristine = Some(self.bytes.clone());
        }
        let at = bit / 8 % self.bytes.len().max(1);
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Bytes were changed that the ICRC covers; BTH byte 4 is masked and may change on the way.
    fn really_damaged(&self) -> bool {
        self.pristine.as_ref().is_some_and(|before| {
            let differ = |i: usize| i != 4 && before[i] != self.bytes[i];
            (0..before.len()).any(differ)
        })
    }

    fn v4(&self) -> Option<icrc::V4> {
        Some(icrc::V4 {
            src: self.src.v4()?,
            dst: self.dst.v4()?,
            id: self.id,
            flags_frag: self.flags,
            sport: self.sport,
            dport: UDP_PORT,
        })
    }

    const fn v6(&self) -> icrc::V6 {
        icrc::V6 {
            src: self.src.0,
            dst: self.dst.0,
            sport: self.sport,
            dport: UDP_PORT,
        }
    }
}
