//! A simulated host: a production engine, its world, its link's sending side.

use rocebud_engine::{Node, NodeConfig, Transmit};
use rocebud_objects::Instant;
use rocebud_wire::Gid;

use crate::env::HostEnv;
use crate::frame::{Frame, IdRule};
use crate::memory::Memory;
use crate::rng::Rng;

/// What a host is made of.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Own IPv4 address, mapped.
    pub v4: Gid,
    /// Own IPv6 address.
    pub v6: Gid,
    /// How IPv4 packets are numbered.
    pub id_rule: IdRule,
    /// Most frames that leave at one moment, as a batch would.
    pub batch_max: u16,
    /// Nanoseconds that a byte takes on the link, times 1024.
    pub byte_ns_per_1024: u64,
    /// Limits of the engine.
    pub node: NodeConfig,
}

/// A host.
#[derive(Debug)]
pub struct Host {
    /// The engine under test.
    pub node: Node,
    /// Its memory, completion queues and logs.
    pub env: HostEnv,
    pub(crate) config: HostConfig,
    /// When the link has sent what it was given.
    pub(crate) link_free: Instant,
    /// The process does not run until then.
    pub(crate) frozen_until: Instant,
    /// The engine said that it had something to send and then had nothing; ask again after the
    /// next input.
    pub(crate) exhausted: bool,
    next_id: u16,
    staging: Vec<u8>,
}

/// Room for the largest packet.
const STAGING_BYTES: usize = 4096 + 256;

impl Host {
    pub(crate) fn new(index: usize, config: HostConfig, mut rng: Rng) -> Self {
        // Arenas of different hosts do not overlap, so that an address of the wrong host faults.
        let base = 0x10_0000_0000 * (index as u64 + 1) + rng.below(4096);
        Self {
            node: Node::new(config.node),
            env: HostEnv::new(Memory::new(base, rng.fork(1))),
            link_free: Instant(0),
            frozen_until: Instant(0),
            exhausted: false,
            next_id: rng.next_u32() as u16,
            staging: vec![0; STAGING_BYTES],
            config,
        }
    }

    /// Own addresses: IPv4 mapped, IPv6.
    #[must_use]
    pub const fn gids(&self) -> [Gid; 2] {
        [self.config.v4, self.config.v6]
    }

    /// Takes one packet from the engine and seals it. `position` is its place in the batch.
    pub(crate) fn next_frame(&mut self, now: Instant, position: u16) -> Option<(Transmit, Frame)> {
        // What the engine leaves unwritten shows as a wrong payload, not as zeros.
        self.staging.fill(0xa5);
        let transmit = self
            .node
            .poll_transmit(now, &mut self.staging, &mut self.env)?;
        let id = match self.config.id_rule {
            IdRule::BatchIndex => position,
            IdRule::Rising => {
                self.next_id = self.next_id.wrapping_add(1);
                self.next_id
            }
        };
        let bytes = &self.staging[..transmit.len];
        let frame = Frame::seal(&transmit, bytes, id, self.config.id_rule);
        Some((transmit, frame))
    }

    /// Nanoseconds that a frame occupies the link: payload, IP, UDP and Ethernet.
    pub(crate) fn airtime_ns(&self, frame: &Frame) -> u64 {
        (frame.bytes.len() as u64 + 66) * self.config.byte_ns_per_1024 / 1024
    }
}
