use alloc::vec;
use alloc::vec::Vec;

use super::*;

const DST: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const SRC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];

fn ethernet(tags: &[(u16, u16)], ether_type: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = [DST, SRC].concat();
    for (tpid, tag) in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(ether_type.to_be_bytes());
    frame.extend(rest);
    frame
}

/// 10.0.0.1 to 10.0.0.2 with `options` words of options.
fn ipv4(options: u8, fragment: u16, protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45 + options, 0xb8, 0, 0, 0, 0];
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend(vec![1; usize::from(options) * 4]);
    packet.extend(rest);
    packet
}

fn ipv6(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = 0x6120_0005_u32.to_be_bytes().to_vec();
    packet.extend([0, 8, protocol, 9]);
    packet.extend([[1; 16], [2; 16]].concat());
    packet.extend(rest);
    packet
}

const PORTS: [u8; 8] = [4, 210, 22, 46, 0, 8, 0, 0]; // 1234, 5678

fn exactly<T: Copy>(value: T, mask: T) -> Masked<T> {
    Masked { value, mask }
}

fn udp(src: u16, dst: u16) -> FlowSpec {
    FlowSpec::Udp {
        src_port: exactly(src, 0xffff),
        dst_port: exactly(dst, 0xffff),
    }
}

fn eth(ether_type: Masked<u16>, vlan_tag: Masked<u16>) -> FlowSpec {
    FlowSpec::Eth {
        dst_mac: exactly(DST, [0xff; 6]),
        src_mac: exactly(SRC, [0; 6]),
        ether_type,
        vlan_tag,
    }
}

fn fits(spec: &FlowSpec, frame: &[u8]) -> bool {
    let attr = FlowAttr {
        specs: vec![spec.clone()],
        ..FlowAttr::default()
    };
    attr.fits(&Headers::read(frame).unwrap())
}

#[test]
fn headers_are_read_behind_tags_and_options() {
    for tags in [
        &[][..],
        &[(0x8100, 0x0064)],
        &[(0x88a8, 0x0064), (0x8100, 7)],
    ] {
        for options in [0, 1, 10] {
            let frame = ethernet(tags, 0x0800, &ipv4(options, 0x4000, UDP, &PORTS));
            let headers = Headers::read(&frame).unwrap();
            assert_eq!(headers.ports, Some((1234, 5678)));
            assert_eq!(headers.vlan_tag, tags.first().map(|_| 0x64));
            assert_eq!((headers.traffic_class, headers.hop_limit), (0xb8, 64));
            let network = Network::V4 {
                src: [10, 0, 0, 1],
                dst: [10, 0, 0, 2],
                flags: 2,
            };
            assert_eq!(headers.network, network);
        }
        let headers = Headers::read(&ethernet(tags, 0x86dd, &ipv6(TCP, &PORTS))).unwrap();
        assert_eq!(headers.ports, Some((1234, 5678)));
        assert_eq!((headers.traffic_class, headers.hop_limit), (0x12, 9));
        assert!(matches!(headers.network, Network::V6 { flow_label: 5, .. }));
    }
}

#[test]
fn later_fragments_have_no_ports() {
    let first = ethernet(&[], 0x0800, &ipv4(0, 0x2000, UDP, &PORTS));
    let later = ethernet(&[], 0x0800, &ipv4(0, 0x2010, UDP, &PORTS));
    assert!(fits(&udp(1234, 5678), &first));
    assert!(!fits(&udp(1234, 5678), &later));
}

#[test]
fn short_and_false_headers_are_none() {
    let whole = ethernet(&[(0x8100, 1)], 0x0800, &ipv4(0, 0, UDP, &PORTS));
    for len in 0..whole.len() {
        let headers = Headers::read(&whole[..len]);
        assert_eq!(headers.is_some(), len >= ETHER_HEADER_BYTES, "{len}");
        let known = headers.is_some_and(|h| h.network != Network::Other);
        assert_eq!(known, len >= 14 + 4 + 20, "{len}");
    }
    let false_version = ethernet(&[], 0x86dd, &ipv4(0, 0, UDP, &[0; 40]));
    let headers = Headers::read(&false_version).unwrap();
    assert_eq!((headers.network, headers.ports), (Network::Other, None));
}

#[test]
fn only_bits_under_the_mask_count() {
    let frame = ethernet(&[], 0x0800, &ipv4(0, 0, UDP, &PORTS));
    let any = Masked::<u16>::default();
    assert!(fits(&eth(any, any), &frame));
    assert!(fits(&eth(exactly(0x0800, 0xffff), any), &frame));
    assert!(!fits(&eth(exactly(0x86dd, 0xffff), any), &frame));
    let net = |mask| FlowSpec::Ipv4 {
        src: exactly([10, 9, 9, 9], mask),
        dst: Masked::default(),
        proto: Masked::default(),
        tos: Masked::default(),
        ttl: Masked::default(),
        flags: Masked::default(),
    };
    assert!(fits(&net([255, 0, 0, 0]), &frame));
    assert!(!fits(&net([255, 255, 0, 0]), &frame));
    assert!(fits(&udp(1234, 5678), &frame));
    assert!(!fits(&udp(1234, 5679), &frame));
}

#[test]
fn a_condition_on_a_header_needs_the_header() {
    let arp = ethernet(&[], 0x0806, &[0; 28]);
    let v6 = ethernet(&[], 0x86dd, &ipv6(UDP, &PORTS));
    let tagged = ethernet(&[(0x8100, 0x2064)], 0x0800, &ipv4(0, 0, TCP, &PORTS));
    let any_v4 = FlowSpec::Ipv4 {
        src: Masked::default(),
        dst: Masked::default(),
        proto: Masked::default(),
        tos: Masked::default(),
        ttl: Masked::default(),
        flags: Masked::default(),
    };
    assert!(!fits(&any_v4, &arp) && !fits(&any_v4, &v6) && fits(&any_v4, &tagged));
    assert!(fits(&udp(1234, 5678), &v6) && !fits(&udp(1234, 5678), &tagged));
    let vlan_100 = eth(Masked::default(), exactly(0x64, 0x0fff));
    assert!(fits(&vlan_100, &tagged) && !fits(&vlan_100, &v6));
}
