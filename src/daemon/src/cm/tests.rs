use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use rocebud_ctl::GidEntry;
use rocebud_ctl::cm::{CmAddr, CmAnswer, CmOption, CmParam, CmRequest};

use super::*;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const PORT: u16 = 7471;
const TCP: u16 = 0x106;
const UDP: u16 = 0x111;
const RC: u8 = 2;
const UD: u8 = 4;

/// A manager with one device, which has the address 127.0.0.1, and a network that brings every
/// datagram back.
struct Host {
    cm: Cm,
    devices: Vec<DeviceInfo>,
    picture: Picture,
    now: Now,
}

impl Host {
    fn new() -> Self {
        let gid = GidEntry {
            bytes: Gid::from_ip(LOOPBACK).0,
            ifindex: 1,
        };
        let device = DeviceInfo {
            name: "rb_lo".into(),
            ifindex: 1,
            netdev: "lo".into(),
            guid: 7,
            mac: [0; 6],
            netdev_mtu: 65536,
            active_mtu: 5,
            enabled: true,
            active: true,
            speed_mbps: 1000,
            loopback: true,
            keeps_batches: true,
            gids: vec![Some(gid)],
        };
        Self {
            cm: Cm::new(Hello::new(1, 64, 1 << 20, 0)),
            devices: vec![device],
            picture: Picture::default(),
            now: Now::ZERO,
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Cm, &World<'_>) -> T) -> T {
        let world = World {
            devices: &self.devices,
            picture: &self.picture,
            now: self.now,
        };
        act(&mut self.cm, &world)
    }

    /// Brings datagrams to where they go, which is here.
    fn settle(&mut self) {
        while let Some(sent) = self.with(Cm::poll_transmit) {
            let datagram = Datagram {
                source: sent.path.ends.local.ip(),
                destination: sent.path.ends.remote.ip(),
                ifindex: 1,
                mad: sent.mad,
            };
            self.with(|cm, world| cm.on_datagram(&datagram, world));
        }
    }

    fn ask(&mut self, client: u64, request: CmRequest) -> CmAnswer {
        let asker = Asker {
            client,
            privileged: false,
        };
        let (answer, _socket) = self.with(|cm, world| cm.serve(asker, request, world));
        self.settle();
        answer
    }

    fn pass(&mut self, time: Now) {
        self.now += time;
        self.with(Cm::on_time);
        self.settle();
    }

    fn open(&mut self, client: u64) -> u32 {
        match self.ask(client, CmRequest::OpenChannel) {
            CmAnswer::Channel(channel) => channel,
            other => panic!("no channel: {other:?}"),
        }
    }

    fn create(&mut self, client: u64, channel: u32, space: u16, qp_type: u8) -> u32 {
        let create = CmRequest::CreateId {
            channel,
            space,
            qp_type,
        };
        match self.ask(client, create) {
            CmAnswer::Id(id) => id,
            other => panic!("no identifier: {other:?}"),
        }
    }

    fn event(&mut self, client: u64, channel: u32) -> Option<CmEvent> {
        match self.ask(client, CmRequest::NextEvent { channel }) {
            CmAnswer::Event(event) => event.map(|event| *event),
            other => panic!("no answer about events: {other:?}"),
        }
    }

    fn kinds(&mut self, client: u64, channel: u32) -> Vec<u32> {
        std::iter::from_fn(|| self.event(client, channel).map(|event| event.kind)).collect()
    }

    fn listen(&mut self, client: u64, channel: u32, space: u16, qp_type: u8) -> u32 {
        let id = self.create(client, channel, space, qp_type);
        let address = at(PORT);
        let bound = self.ask(client, CmRequest::Bind { id, address });
        assert!(matches!(bound, CmAnswer::Bound(_)), "{bound:?}");
        let listening = self.ask(client, CmRequest::Listen { id, backlog: 0 });
        assert!(matches!(listening, CmAnswer::Bound(_)), "{listening:?}");
        id
    }

    fn call(&mut self, client: u64, channel: u32, space: u16, qp_type: u8) -> u32 {
        let id = self.create(client, channel, space, qp_type);
        let resolve = CmRequest::ResolveAddr {
            id,
            source: None,
            destination: at(PORT),
            timeout_ms: 1000,
        };
        assert_eq!(self.ask(client, resolve), CmAnswer::Done);
        assert_eq!(
            self.ask(client, CmRequest::ResolveRoute { id }),
            CmAnswer::Done
        );
        let param = param(0x1234);
        assert_eq!(
            self.ask(client, CmRequest::Connect { id, param }),
            CmAnswer::Done
        );
        id
    }

    fn is_empty(&self) -> bool {
        let cm = &self.cm;
        cm.ids.is_empty() && cm.conns.is_empty() && cm.listeners.is_empty() && cm.queries.is_empty()
    }
}

fn at(port: u16) -> CmAddr {
    CmAddr {
        ip: LOOPBACK,
        port,
        scope: 0,
    }
}

fn param(qpn: u32) -> CmParam {
    CmParam {
        qpn,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        private_data: b"hello".to_vec(),
        ..CmParam::default()
    }
}

/// 127.0.0.1 is a route of every namespace whose loopback is up; without it there is nothing to try.
fn has_loopback() -> bool {
    std::net::UdpSocket::bind((LOOPBACK, 0)).is_ok()
}

#[test]
fn two_programs_connect_and_part() {
    if !has_loopback() {
        return;
    }
    let mut host = Host::new();
    let (server, client) = (host.open(1), host.open(2));
    host.listen(1, server, TCP, RC);
    let id = host.call(2, client, TCP, RC);
    assert_eq!(
        host.kinds(2, client),
        [0, 2],
        "ADDR_RESOLVED, ROUTE_RESOLVED"
    );
    let request = host.event(1, server).expect("a request");
    assert_eq!(request.kind, 4, "CONNECT_REQUEST");
    let CmDetails::Request(route, said) = &request.details else {
        panic!("{request:?}");
    };
    assert_eq!(said.private_data[..5], *b"hello");
    assert_eq!(said.private_data.len(), 56);
    assert_eq!(route.source, at(PORT));
    let child = request.id;
    let accept = CmRequest::Accept {
        id: child,
        param: param(0x5678),
    };
    assert_eq!(host.ask(1, accept), CmAnswer::Done);
    let CmAnswer::QpAttr(attr) = host.ask(2, CmRequest::QpAttr { id }) else {
        panic!("no attributes");
    };
    assert!(attr.connected);
    assert_eq!(attr.dest_qpn, 0x5678);
    assert_eq!(host.kinds(2, client), [5], "CONNECT_RESPONSE");
    assert_eq!(host.ask(2, CmRequest::Establish { id }), CmAnswer::Done);
    assert_eq!(host.kinds(1, server), [9], "ESTABLISHED");
    assert_eq!(host.ask(2, CmRequest::Disconnect { id }), CmAnswer::Done);
    assert_eq!(host.kinds(1, server), [10], "DISCONNECTED");
    assert_eq!(host.kinds(2, client), [10], "DISCONNECTED");
    host.pass(Now::from_secs(20));
    assert_eq!(host.kinds(1, server), [15], "TIMEWAIT_EXIT");
}

#[test]
fn a_datagram_service_is_asked_once() {
    if !has_loopback() {
        return;
    }
    let mut host = Host::new();
    let (server, client) = (host.open(1), host.open(2));
    host.listen(1, server, UDP, UD);
    host.call(2, client, UDP, UD);
    let request = host.event(1, server).expect("a request");
    let CmDetails::DatagramRequest(_, said) = &request.details else {
        panic!("{request:?}");
    };
    assert_eq!(said.private_data.len(), 180);
    let accept = CmRequest::Accept {
        id: request.id,
        param: param(0x99),
    };
    assert_eq!(host.ask(1, accept), CmAnswer::Done);
    let mut events = std::iter::from_fn(|| host.event(2, client));
    let last = events.by_ref().last().expect("an answer");
    let CmDetails::Datagram(answer) = last.details else {
        panic!("{last:?}");
    };
    assert_eq!((answer.qpn, answer.qkey), (0x99, 0x0123_4567));
}

#[test]
fn whoever_dies_is_disconnected() {
    if !has_loopback() {
        return;
    }
    let mut host = Host::new();
    let (server, client) = (host.open(1), host.open(2));
    host.listen(1, server, TCP, RC);
    let id = host.call(2, client, TCP, RC);
    let child = host.event(1, server).expect("a request").id;
    let accept = CmRequest::Accept {
        id: child,
        param: param(1),
    };
    assert_eq!(host.ask(1, accept), CmAnswer::Done);
    assert_eq!(host.ask(2, CmRequest::Establish { id }), CmAnswer::Done);
    assert_eq!(host.kinds(1, server), [9]);
    host.with(|cm, world| cm.drop_client(2, world));
    host.settle();
    assert_eq!(host.kinds(1, server), [10], "DISCONNECTED");
}

#[test]
fn what_a_listener_has_not_read_is_refused_with_it() {
    if !has_loopback() {
        return;
    }
    let mut host = Host::new();
    let (server, client) = (host.open(1), host.open(2));
    let listener = host.listen(1, server, TCP, RC);
    host.call(2, client, TCP, RC);
    assert_eq!(
        host.ask(1, CmRequest::DestroyId { id: listener }),
        CmAnswer::Reported(0)
    );
    assert_eq!(host.kinds(2, client), [0, 2, 8], "REJECTED");
    assert_eq!(host.cm.ids.len(), 1);
}

#[test]
fn a_service_that_has_just_closed_is_refused_a_little_later_only() {
    if !has_loopback() {
        return;
    }
    let mut host = Host::new();
    let (server, client) = (host.open(1), host.open(2));
    let listener = host.listen(1, server, TCP, RC);
    host.ask(1, CmRequest::DestroyId { id: listener });
    host.call(2, client, TCP, RC);
    assert_eq!(host.kinds(2, client), [0, 2]);
    host.listen(1, server, TCP, RC);
    host.pass(Now::from_millis(300));
    assert_eq!(host.kinds(1, server), [4], "CONNECT_REQUEST");
}

#[test]
fn nobody_touches_what_is_anothers() {
    let mut host = Host::new();
    let (one, _two) = (host.open(1), host.open(2));
    let id = host.create(1, one, TCP, RC);
    let refused = CmAnswer::Refused(libc::EINVAL);
    let address = at(PORT);
    for request in [
        CmRequest::DestroyId { id },
        CmRequest::NextEvent { channel: one },
        CmRequest::CloseChannel { channel: one },
        CmRequest::Bind { id, address },
        CmRequest::MigrateId { id, channel: one },
    ] {
        assert_eq!(host.ask(2, request.clone()), refused, "{request:?}");
    }
    assert_eq!(
        host.ask(1, CmRequest::DestroyId { id }),
        CmAnswer::Reported(0)
    );
}

#[test]
fn a_device_that_goes_is_told_once() {
    let mut host = Host::new();
    let channel = host.open(1);
    let id = host.create(1, channel, TCP, RC);
    let address = at(0);
    host.ask(1, CmRequest::Bind { id, address });
    host.devices.clear();
    host.with(|cm, world| cm.on_devices(world));
    host.with(|cm, world| cm.on_devices(world));
    assert_eq!(host.kinds(1, channel), [11], "DEVICE_REMOVAL");
}

fn option(small: u8) -> CmOption {
    match small % 4 {
        0 => CmOption::Tos(small),
        1 => CmOption::ReuseAddr(small > 99),
        2 => CmOption::AfOnly(small > 99),
        _ => CmOption::AckTimeout(small),
    }
}

/// A request of some client, with numbers that may exist.
fn any_request() -> impl Strategy<Value = CmRequest> {
    let number = 1_u32..12;
    let address = (any::<bool>(), 0_u16..3).prop_map(|(own, port)| CmAddr {
        ip: if own {
            LOOPBACK
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        },
        port: if port == 0 { 0 } else { PORT + port },
        scope: 0,
    });
    let data = proptest::collection::vec(any::<u8>(), 0..240);
    let arguments = (number.clone(), number, address, data, any::<u8>());
    (0_u8..20, arguments).prop_map(|(which, (id, channel, address, private_data, small))| {
        let param = CmParam {
            private_data: private_data.clone(),
            ..param(u32::from(small))
        };
        match which {
            0 => CmRequest::OpenChannel,
            1 => CmRequest::CloseChannel { channel },
            2 | 3 => CmRequest::CreateId {
                channel,
                space: if small % 3 == 0 { UDP } else { TCP },
                qp_type: if small % 3 == 0 { UD } else { RC },
            },
            4 => CmRequest::DestroyId { id },
            5 => CmRequest::MigrateId { id, channel },
            6 => CmRequest::NextEvent { channel },
            7 => CmRequest::Bind { id, address },
            8 => CmRequest::ResolveAddr {
                id,
                source: None,
                destination: address,
                timeout_ms: u32::from(small),
            },
            9 => CmRequest::ResolveRoute { id },
            10 => CmRequest::Listen {
                id,
                backlog: u32::from(small % 3),
            },
            11 => CmRequest::Connect { id, param },
            12 => CmRequest::Accept { id, param },
            13 => CmRequest::Establish { id },
            14 => CmRequest::Reject {
                id,
                reason: small,
                private_data,
            },
            15 => CmRequest::Disconnect { id },
            16 => CmRequest::QpAttr { id },
            17 => CmRequest::SetOption {
                id,
                option: option(small),
            },
            18 => CmRequest::WriteEvent {
                id,
                kind: u32::from(small),
                status: 0,
                argument: 0,
            },
            _ => CmRequest::Notify {
                id,
                migrated: small > 99,
            },
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_programs_ask_for_nothing_is_left_of_them(
        steps in proptest::collection::vec((1_u64..3, any_request(), 0_u64..400), 0..120)
    ) {
        let mut host = Host::new();
        host.open(1);
        host.open(2);
        for (client, request, millis) in steps {
            host.ask(client, request);
            host.pass(Now::from_millis(millis));
            let held: usize = host.cm.held.values().sum();
            prop_assert_eq!(held, host.cm.ids.len());
        }
        for client in 1..3 {
            host.with(|cm, world| cm.drop_client(client, world));
            host.settle();
        }
        prop_assert!(host.is_empty());
        // What peers must still hear of ends as well.
        for _ in 0..100 {
            host.pass(Now::from_secs(1));
        }
        prop_assert_eq!(host.cm.manager.connections(), 0);
    }
}
