//! Messages of other implementations: read, and written again byte for byte.

mod common;

use std::collections::BTreeMap;

use common::golden::{self, Golden};
use rocebud_cm::ip::{self, IpCm, PortSpace};
use rocebud_cm::{Message, RejReason};
use rocebud_wire::{PKey, Psn, QKey, Qpn};

fn read(golden: &Golden) -> Message {
    Message::parse(&golden.mad)
        .unwrap_or_else(|e| panic!("{}: {e}", golden.what))
        .1
}

#[test]
fn every_message_comes_out_as_it_went_in() {
    let mut kinds = BTreeMap::<&str, u32>::new();
    for golden in golden::all() {
        let (header, message) = Message::parse(&golden.mad).expect(&golden.what);
        *kinds.entry(message.name()).or_default() += 1;
        let again = message.emit(header.tid, header.attr_mod);
        assert_eq!(again[..], golden.mad[..], "{}: {message:?}", golden.what);
    }
    let seen: Vec<_> = kinds.into_iter().map(|(k, n)| format!("{k} {n}")).collect();
    let expected = "DREP 3, DREQ 4, REJ 1, REP 3, REQ 6, RTU 5, SIDR_REP 1, SIDR_REQ 1";
    assert_eq!(seen.join(", "), expected);
}

#[test]
fn a_req_of_the_kernel_says_what_rping_asks_for() {
    let captured = golden::of("cm-rping");
    let first = &captured[0];
    let Message::Req(req) = read(first) else {
        panic!("{}", first.what)
    };
    assert_eq!(req.service_id, ip::service_id(PortSpace::Tcp, 7174));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!(
        (req.transport, req.flow_control, req.srq),
        (0, false, false)
    );
    assert_eq!(
        (req.remote_response_timeout, req.local_response_timeout),
        (20, 20)
    );
    assert_eq!(
        (req.retry_count, req.rnr_retry_count, req.max_cm_retries),
        (7, 7, 15)
    );
    assert_eq!((req.pkey, req.mtu), (PKey::DEFAULT, 3));
    assert_eq!(
        (req.primary.local_gid, req.primary.remote_gid),
        (first.src, first.dst)
    );
    assert_eq!(
        (req.primary.local_lid, req.primary.remote_lid),
        (0xffff, 0xffff)
    );
    assert_eq!((req.primary.hop_limit, req.primary.ack_timeout), (64, 19));
    assert_eq!(req.primary.flow_label, 0x102d3);
    assert_eq!(req.alternate, Default::default());
    let named = IpCm::parse(&req.private_data).expect("an IP header");
    assert_eq!(named.gids(), (first.src, first.dst));
    assert_eq!(named.emit(), req.private_data[..36]);
}

#[test]
fn addresses_of_ipv6_are_read_and_written() {
    let captured = golden::of("cm-rping-ipv6");
    let Message::Req(req) = read(&captured[0]) else {
        panic!("{}", captured[0].what)
    };
    let named = IpCm::parse(&req.private_data).expect("an IP header");
    assert_eq!(named.gids(), (captured[0].src, captured[0].dst));
    assert_eq!(named.dst.to_string(), "fd98:0:0:1::11");
    assert_eq!(named.emit(), req.private_data[..36]);
}

#[test]
fn starting_psns_are_what_the_receiver_begins_with() {
    let captured = golden::of("cm-rdma-server");
    let (Message::Req(req), Message::Rep(rep)) = (read(&captured[0]), read(&captured[1])) else {
        panic!("REQ and REP")
    };
    assert_eq!(req.starting_psn, Psn::new(0x8b_0da2));
    assert_eq!(rep.starting_psn, Psn::new(0x8b_1d91));
    assert_eq!((rep.remote_id, rep.target_ack_delay), (req.local_id, 15));
    assert_eq!((rep.rnr_retry_count, rep.flow_control), (7, false));
    assert_eq!((req.responder_resources, req.initiator_depth), (128, 128));
}

#[test]
fn a_rej_of_the_kernel_keeps_no_state() {
    let captured = golden::of("cm-reject");
    let (Message::Req(req), Message::Rej(rej)) = (read(&captured[0]), read(&captured[1])) else {
        panic!("REQ and REJ")
    };
    assert_eq!(
        (rej.local_id, rej.remote_id, rej.message),
        (0, req.local_id, 0)
    );
    assert_eq!(RejReason(rej.reason), RejReason::INVALID_SERVICE_ID);
    assert_eq!(rej.ari_len, 0);
}

#[test]
fn a_question_for_a_datagram_service_is_answered_with_a_queue_pair() {
    let captured = golden::of("cm-udaddy");
    let (Message::SidrReq(req), Message::SidrRep(rep)) = (read(&captured[0]), read(&captured[1]))
    else {
        panic!("SIDR_REQ and SIDR_REP")
    };
    assert_eq!(req.service_id, ip::service_id(PortSpace::Udp, 0x1c06));
    assert_eq!(
        (rep.request_id, rep.service_id),
        (req.request_id, req.service_id)
    );
    assert_eq!(
        (rep.status, rep.qkey, rep.vendor_id),
        (0, QKey(0x0123_4567), 0)
    );
    assert_ne!(rep.qpn, Qpn::default());
}

#[test]
fn a_vendor_is_named_by_an_mlx5_peer() {
    let published = golden::all();
    let req = published
        .iter()
        .find(|g| g.what == "mlx-vlan-cm-req")
        .map(read);
    let Some(Message::Req(req)) = req else {
        panic!("mlx-vlan-cm-req")
    };
    assert_eq!(req.vendor_id, 0x00_15b3);
    assert_eq!((req.responder_resources, req.initiator_depth), (16, 16));
    assert_eq!(
        (req.local_response_timeout, req.primary.ack_timeout),
        (22, 18)
    );
}
