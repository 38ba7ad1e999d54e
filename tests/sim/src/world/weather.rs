//! What no application asked for: strangers' frames, and hosts that stand still.

use rocebud_fabric::{Frame, HostId};
use rocebud_objects::Path;
use rocebud_wire::{Bth, Opcode, Psn, Qpn};

use super::World;
use super::alarm::Alarm;
use crate::setup;
use crate::violation::Verdict;

/// Enough for a run; long waits need not be full of it.
const WEATHER_MAX: u32 = 400;

impl World {
    pub(crate) fn next_weather(&mut self) {
        if self.plan.weather_ns != 0 {
            let pause = self.rng.below(self.plan.weather_ns * 2) + 1;
            self.set_alarm(pause, Alarm::Weather);
        }
    }

    /// Goes on for as long as a program has something to do.
    pub(crate) fn weather(&mut self) -> Verdict {
        self.weathers += 1;
        let busy = |e: &super::End| self.has_more(e) || !e.sends.outstanding().is_empty();
        if self.weathers > WEATHER_MAX || !self.ends.iter().any(busy) {
            return Ok(());
        }
        if self.plan.freeze_ns_max != 0 && self.rng.percent(10) {
            let host = HostId(self.rng.below(self.plan.hosts.len() as u64) as usize);
            let ns = self.rng.below(self.plan.freeze_ns_max);
            self.tell(|| format!("freeze h{} for {ns} ns", host.0));
            // Every retry must have a chance between two freezes.
            self.set_alarm(self.plan.freeze_ns_max * 20, Alarm::Weather);
            self.fabric.freeze(host, ns);
            return Ok(());
        }
        self.stranger();
        self.next_weather();
        Ok(())
    }

    /// A well-sealed frame for a queue pair, from an address that is not its peer's. Must change
    /// nothing at all.
    fn stranger(&mut self) {
        let to = self.rng.below(self.ends.len() as u64) as usize;
        let (host, qpn, peer) = {
            let end = &self.ends[to];
            (end.host, end.qpn, end.peer)
        };
        let link = self.ends[to].link.map(|l| self.plan.links[l].link);
        let v6 = link.map_or_else(|| self.rng.percent(50), |l| l.v6);
        let family = usize::from(v6);
        // Now and then the peer itself, but by its other address.
        let own_peer = link.is_some() && self.rng.percent(20);
        let (src, dst) = if own_peer {
            let other = 1 - family;
            let peer = self.ends[peer].host;
            (
                setup::host_gids(peer.0)[other],
                setup::host_gids(host.0)[other],
            )
        } else {
            let nobody = 100 + self.rng.below(100) as usize;
            (
                setup::host_gids(nobody)[family],
                setup::host_gids(host.0)[family],
            )
        };
        let psn = self.wire.next_psn(self.ends[peer].qpn);
        let near = psn
            .unwrap_or(Psn::new(0))
            .add(self.rng.range_u32(0, 4))
            .sub(2);
        let bytes = self.any_packet(qpn, near);
        let path = Path {
            sgid: src,
            dgid: dst,
            hop_limit: 64,
            ..Path::default()
        };
        let frame = Frame::forge(path, 0xc123, &bytes);
        self.fabric.inject(host, frame);
    }

    /// Any opcode, any length, any content, and a PSN that would fit.
    fn any_packet(&mut self, qpn: Qpn, psn: Psn) -> Vec<u8> {
        let opcode = Opcode(self.rng.next_u32() as u8);
        let fits = opcode.info().map_or(12, |i| u64::from(i.header_len)) as usize;
        let payload = self.rng.pick(&[0, 0, 4, 8, 256, 1024]);
        let mut bytes = vec![0; fits + payload + 4];
        let seed = self.rng.next_u64();
        rocebud_fabric::fill(seed, 0, &mut bytes);
        let mut bth = Bth::new(opcode, qpn, psn);
        bth.ack_req = true;
        let mut header = [0; 128];
        rocebud_wire::Header {
            bth,
            ext: rocebud_wire::Ext::NONE,
        }
        .emit(0, &mut header);
        bytes[..12].copy_from_slice(&header[..12]);
        bytes[0] = opcode.0;
        bytes
    }
}
