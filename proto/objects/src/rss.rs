//! Spreading packets over receive queues by a hash of their addresses.

use bitflags::bitflags;

use crate::flow::{Headers, Network, TCP, UDP};

bitflags! {
    /// `enum ibv_rx_hash_fields`: what goes into the hash.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[allow(missing_docs, reason = "the names are those of verbs.h")]
    pub struct RxHashFields: u64 {
        const SRC_IPV4 = 1;
        const DST_IPV4 = 1 << 1;
        const SRC_IPV6 = 1 << 2;
        const DST_IPV6 = 1 << 3;
        const SRC_PORT_TCP = 1 << 4;
        const DST_PORT_TCP = 1 << 5;
        const SRC_PORT_UDP = 1 << 6;
        const DST_PORT_UDP = 1 << 7;
    }
}

impl RxHashFields {
    const V4: Self = Self::SRC_IPV4.union(Self::DST_IPV4);
    const V6: Self = Self::SRC_IPV6.union(Self::DST_IPV6);
    const TCP_PORTS: Self = Self::SRC_PORT_TCP.union(Self::DST_PORT_TCP);
    const UDP_PORTS: Self = Self::SRC_PORT_UDP.union(Self::DST_PORT_UDP);

    /// One network protocol, and one transport protocol, at most.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        let networks = self.intersects(Self::V4) && self.intersects(Self::V6);
        let transports = self.intersects(Self::TCP_PORTS) && self.intersects(Self::UDP_PORTS);
        !networks && !transports
    }
}

/// Bytes of a Toeplitz key.
pub const RX_HASH_KEY_BYTES: usize = 40;

/// How a queue pair with an indirection table hashes; `struct ibv_rx_hash_conf`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxHash {
    /// Key of the Toeplitz function.
    pub key: [u8; RX_HASH_KEY_BYTES],
    /// What goes in. What a packet does not have is left out.
    pub fields: RxHashFields,
}

impl RxHash {
    /// The hash of a packet.
    #[must_use]
    pub fn of(&self, headers: &Headers) -> u32 {
        let has = |field| self.fields.contains(field);
        let mut toeplitz = Toeplitz::new(&self.key);
        let mut add = |wanted: bool, bytes: &[u8]| {
            if wanted {
                toeplitz.add(bytes);
            }
        };
        match headers.network {
            Network::V4 { src, dst, .. } => {
                add(has(RxHashFields::SRC_IPV4), &src);
                add(has(RxHashFields::DST_IPV4), &dst);
            }
            Network::V6 { src, dst, .. } => {
                add(has(RxHashFields::SRC_IPV6), &src);
                add(has(RxHashFields::DST_IPV6), &dst);
            }
            Network::Other => {}
        }
        if let Some((src, dst)) = headers.ports {
            let (tcp, udp) = (headers.protocol == TCP, headers.protocol == UDP);
            let wants = |of_tcp, of_udp| tcp && has(of_tcp) || udp && has(of_udp);
            let src_wanted = wants(RxHashFields::SRC_PORT_TCP, RxHashFields::SRC_PORT_UDP);
            let dst_wanted = wants(RxHashFields::DST_PORT_TCP, RxHashFields::DST_PORT_UDP);
            add(src_wanted, &src.to_be_bytes());
            add(dst_wanted, &dst.to_be_bytes());
        }
        toeplitz.hash
    }
}

/// For each bit of the input that is set, the 32 bits of the key that begin where it stands.
struct Toeplitz<'a> {
    key: &'a [u8; RX_HASH_KEY_BYTES],
    /// Input bytes so far.
    at: usize,
    hash: u32,
}

impl<'a> Toeplitz<'a> {
    const fn new(key: &'a [u8; RX_HASH_KEY_BYTES]) -> Self {
        Self {
            key,
            at: 0,
            hash: 0,
        }
    }

    fn add(&mut self, input: &[u8]) {
        let key = |at: usize| u64::from(self.key.get(at).copied().unwrap_or(0));
        for byte in input {
            let window = (0..5).fold(0, |bits, i| bits << 8 | key(self.at + i));
            for bit in 0..8 {
                if byte & 0x80 >> bit != 0 {
                    // The lower 32 bits of the window, moved up by `bit`.
                    self.hash ^= u32::try_from(window >> (8 - bit) & 0xffff_ffff).unwrap_or(0);
                }
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key and vectors of the "Verifying the RSS Hash Calculation" page of Windows' driver
    /// documentation.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn headers(src: [u8; 4], dst: [u8; 4], ports: (u16, u16), protocol: u8) -> Headers {
        Headers {
            network: Network::V4 { src, dst, flags: 0 },
            protocol,
            ports: Some(ports),
            ..Headers::default()
        }
    }

    #[test]
    fn known_vectors() {
        let vectors = [
            (
                [66, 9, 149, 187],
                2794,
                [161, 142, 100, 80],
                1766,
                0x323e_8fc2,
                0x51cc_c178,
            ),
            (
                [199, 92, 111, 2],
                14230,
                [65, 69, 140, 83],
                4739,
                0xd718_262a,
                0xc626_b0ea,
            ),
            (
                [24, 19, 198, 95],
                12898,
                [12, 22, 207, 184],
                38024,
                0xd2d0_a5de,
                0x5c2b_394a,
            ),
            (
                [38, 27, 205, 30],
                48228,
                [209, 142, 163, 6],
                2217,
                0x8298_9176,
                0xafc7_327f,
            ),
            (
                [153, 39, 163, 191],
                44251,
                [202, 188, 127, 2],
                1303,
                0x5d18_09c5,
                0x10e8_28a2,
            ),
        ];
        for (src, sport, dst, dport, addresses, all) in vectors {
            let packet = headers(src, dst, (sport, dport), TCP);
            let hash = |fields| RxHash { key: KEY, fields }.of(&packet);
            assert_eq!(hash(RxHashFields::V4), addresses);
            assert_eq!(hash(RxHashFields::V4 | RxHashFields::TCP_PORTS), all);
            // Of a TCP segment there are no UDP ports to take.
            assert_eq!(hash(RxHashFields::V4 | RxHashFields::UDP_PORTS), addresses);
        }
    }

    #[test]
    fn nothing_to_hash_is_zero() {
        let arp = Headers::default();
        let fields = RxHashFields::V4 | RxHashFields::UDP_PORTS;
        assert_eq!(RxHash { key: KEY, fields }.of(&arp), 0);
    }

    #[test]
    fn protocols_do_not_mix() {
        assert!((RxHashFields::V4 | RxHashFields::TCP_PORTS).is_valid());
        assert!(!(RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV6).is_valid());
        assert!(
            !(RxHashFields::V6 | RxHashFields::TCP_PORTS | RxHashFields::DST_PORT_UDP).is_valid()
        );
    }
}
