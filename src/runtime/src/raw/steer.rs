//! Rules, and who gets a frame.
//!
//! Rules of kind `Normal` are asked first, the lowest priority number that has one for the frame
//! decides, and all rules of that number that fit get it. A rule with `dont_trap` lets the frame go
//! on to higher numbers. What nobody took goes to the default rules. Sniffers get everything.

use std::collections::HashSet;
use std::sync::Arc;

use rocebud_nic::packet::{Filter, Listen, Outgoing, Test};
use rocebud_objects::flow::{FlowAttr, FlowId, FlowKind, FlowSpec, Headers, Masked};
use rocebud_wire::Qpn;

use super::FlowCounts;

/// A rule in force.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: FlowId,
    pub(super) qpn: Qpn,
    pub(super) ifindex: u32,
    pub(super) attr: FlowAttr,
    pub(super) counts: Option<Arc<FlowCounts>>,
}

/// All rules, by priority.
#[derive(Debug, Default)]
pub(super) struct Steering {
    rules: Vec<Rule>,
}

/// The rules that a frame met.
#[derive(Debug, Default)]
pub(super) struct Hits<'a> {
    rules: Vec<&'a Rule>,
}

impl<'a> Hits<'a> {
    /// All, for counting.
    pub(super) fn rules(&self) -> &[&'a Rule] {
        &self.rules
    }

    /// One for each queue pair that gets the frame. A rule that drops leaves it to sniffers alone.
    pub(super) fn takers(&self) -> impl Iterator<Item = &'a Rule> + '_ {
        let dropped = self.rules.iter().any(|rule| rule.attr.drop);
        let of_one = |at: usize, rule: &Rule| self.rules[..at].iter().any(|r| r.qpn == rule.qpn);
        let rules = self.rules.iter().enumerate();
        let rules = rules.filter(move |(at, rule)| !of_one(*at, rule));
        let sniffs = |rule: &Rule| rule.attr.kind == FlowKind::Sniffer;
        rules
            .map(|(_, rule)| *rule)
            .filter(move |rule| !dropped || sniffs(rule))
    }
}

impl Steering {
    pub(super) fn add(&mut self, rule: Rule) {
        let priority = rule.attr.priority;
        let at = self.rules.partition_point(|r| r.attr.priority <= priority);
        self.rules.insert(at, rule);
    }

    pub(super) fn remove(&mut self, id: FlowId) -> Option<Rule> {
        let at = self.rules.iter().position(|rule| rule.id == id)?;
        Some(self.rules.remove(at))
    }

    pub(super) fn has_rules_of(&self, qpn: Qpn) -> bool {
        self.rules.iter().any(|rule| rule.qpn == qpn)
    }

    pub(super) fn remove_of(&mut self, qpn: Qpn) {
        self.rules.retain(|rule| rule.qpn != qpn);
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    /// Who gets a frame of an interface. Only sniffers get what this host sends and does not come
    /// back.
    pub(super) fn find(&self, ifindex: u32, headers: &Headers, comes_back: bool) -> Hits<'_> {
        let mut hits = Hits::default();
        let rules = || self.rules.iter().filter(|rule| rule.ifindex == ifindex);
        let mut decided = None;
        if comes_back {
            for rule in rules().filter(|rule| rule.attr.kind == FlowKind::Normal) {
                if decided.is_some_and(|level| rule.attr.priority > level) {
                    break;
                }
                if rule.attr.fits(headers) {
                    hits.rules.push(rule);
                    if !rule.attr.dont_trap {
                        decided = Some(rule.attr.priority);
                    }
                }
            }
        }
        hits.rules
            .extend(rules().filter(|rule| match rule.attr.kind {
                FlowKind::Normal => false,
                FlowKind::AllDefault => comes_back && decided.is_none(),
                FlowKind::McDefault => comes_back && decided.is_none() && headers.is_multicast(),
                FlowKind::Sniffer => true,
            }));
        hits
    }

    /// What must come in for the rules of an interface with address `own`; `None` = nothing.
    pub(super) fn filter(&self, ifindex: u32, own: [u8; 6], loopback: bool) -> Option<Filter> {
        let rules = || self.rules.iter().filter(|rule| rule.ifindex == ifindex);
        rules().next()?;
        let sniffs = rules().any(|rule| rule.attr.kind == FlowKind::Sniffer);
        Some(Filter {
            outgoing: match (sniffs, loopback) {
                (_, true) => Outgoing::None,
                (true, _) => Outgoing::All,
                (false, _) => Outgoing::Back(own),
            },
            any_of: rules().map(|rule| tests(&rule.attr)).collect(),
        })
    }

    /// What the interface must take in beyond what it takes by itself.
    pub(super) fn listens(&self, ifindex: u32, own: [u8; 6]) -> HashSet<Listen> {
        let rules = self.rules.iter().filter(|rule| rule.ifindex == ifindex);
        rules
            .flat_map(|rule| match rule.attr.kind {
                FlowKind::AllDefault | FlowKind::Sniffer => vec![Listen::All],
                FlowKind::McDefault => vec![Listen::AllGroups],
                FlowKind::Normal => rule.attr.specs.iter().filter_map(address).collect(),
            })
            .filter(|listen| *listen != Listen::Address(own))
            .collect()
    }
}

/// The one address that a condition asks for.
fn address(spec: &FlowSpec) -> Option<Listen> {
    match spec {
        FlowSpec::Eth { dst_mac, .. } if dst_mac.mask == [0xff; 6] => {
            let mac = dst_mac.value;
            let group = mac[0] & 1 != 0;
            Some(if group {
                Listen::Group(mac)
            } else {
                Listen::Address(mac)
            })
        }
        _ => None,
    }
}

/// Where headers lie in a frame without tags.
const DST_MAC: u16 = 0;
const SRC_MAC: u16 = 6;
const ETHER_TYPE: u16 = 12;
const V4_PROTOCOL: u16 = 23;
const V4_SRC: u16 = 26;
const V4_DST: u16 = 30;
const V6_NEXT: u16 = 20;
const V6_SRC: u16 = 22;
const V6_DST: u16 = 38;

/// What of a rule can be asked at fixed places; ports and the like are left to [`Steering::find`].
fn tests(attr: &FlowAttr) -> Vec<Test> {
    let mut tests = Vec::new();
    if attr.kind == FlowKind::McDefault {
        tests.push(exactly(DST_MAC, 1, 0x01, 0x01));
    }
    // A frame that is not IP may be too short for what IP has further behind: asked first.
    for spec in &attr.specs {
        match spec {
            FlowSpec::Ipv4 { .. } => tests.push(exactly(ETHER_TYPE, 2, 0xffff, 0x0800)),
            FlowSpec::Ipv6 { .. } => tests.push(exactly(ETHER_TYPE, 2, 0xffff, 0x86dd)),
            _ => {}
        }
    }
    for spec in &attr.specs {
        match spec {
            FlowSpec::Eth {
                dst_mac,
                src_mac,
                ether_type,
                vlan_tag: _,
            } => {
                bytes(&mut tests, DST_MAC, dst_mac);
                bytes(&mut tests, SRC_MAC, src_mac);
                let (mask, value) = (ether_type.mask.into(), ether_type.value.into());
                tests.push(exactly(ETHER_TYPE, 2, mask, value));
            }
            FlowSpec::Ipv4 {
                src, dst, proto, ..
            } => {
                bytes(&mut tests, V4_SRC, src);
                bytes(&mut tests, V4_DST, dst);
                tests.push(exactly(
                    V4_PROTOCOL,
                    1,
                    proto.mask.into(),
                    proto.value.into(),
                ));
            }
            FlowSpec::Ipv6 {
                src, dst, next_hdr, ..
            } => {
                bytes(&mut tests, V6_SRC, src);
                bytes(&mut tests, V6_DST, dst);
                tests.push(exactly(
                    V6_NEXT,
                    1,
                    next_hdr.mask.into(),
                    next_hdr.value.into(),
                ));
            }
            FlowSpec::Tcp { .. } | FlowSpec::Udp { .. } => {}
        }
    }
    tests.retain(|test| test.mask != 0);
    tests
}

const fn exactly(at: u16, bytes: u8, mask: u32, value: u32) -> Test {
    Test {
        at,
        bytes,
        mask,
        value,
    }
}

/// Tests of an address, two bytes at a time.
fn bytes<const N: usize>(tests: &mut Vec<Test>, at: u16, wanted: &Masked<[u8; N]>) {
    let number = |pair: &[u8]| {
        pair.iter()
            .fold(0, |word, byte| word << 8 | u32::from(*byte))
    };
    let pairs = wanted.value.chunks(2).zip(wanted.mask.chunks(2));
    for (offset, (value, mask)) in (at..).step_by(2).zip(pairs) {
        tests.push(exactly(offset, 2, number(mask), number(value)));
    }
}

#[cfg(test)]
mod unit;
