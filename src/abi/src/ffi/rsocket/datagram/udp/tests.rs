use super::*;

#[test]
fn addresses_come_back_as_they_were() {
    for text in ["10.1.2.3:7174", "[fd00::7]:1", "[fe80::1%3]:65535"] {
        let address: SocketAddr = text.parse().unwrap();
        assert_eq!(parse(&emit(address).0), Some(address), "{text}");
    }
    assert_eq!(emit("1.2.3.4:5".parse().unwrap()).1, 16);
    assert_eq!(emit("[::1]:5".parse().unwrap()).1, 28);
    assert_eq!(parse(&[0; 28]), None);
}

#[test]
fn a_datagram_says_where_it_went_and_can_be_answered_from_there() {
    for (wildcard, one, two) in [
        ("0.0.0.0:0", "127.0.0.1", "127.0.0.2"),
        ("[::]:0", "::1", "::1"),
    ] {
        let wildcard: SocketAddr = wildcard.parse().unwrap();
        let (one, two): (IpAddr, IpAddr) = (one.parse().unwrap(), two.parse().unwrap());
        let here = Udp::open(wildcard.is_ipv6()).unwrap();
        let there = Udp::open(wildcard.is_ipv6()).unwrap();
        here.bind(SocketAddr::new(one, 0)).unwrap();
        there.bind(wildcard).unwrap();
        let target = SocketAddr::new(two, there.name().unwrap().port());
        here.send(here.name().unwrap(), target, b"hello", 0)
            .unwrap();
        let mut bytes = [0; 16];
        let came = there.receive(&mut bytes).unwrap();
        assert_eq!((came.to, came.len), (Some(two), 5));
        assert_eq!(came.from, here.name().unwrap());
        there.send(target, came.from, b"well", 0).unwrap();
        let came = here.receive(&mut bytes).unwrap();
        assert_eq!((came.from, &bytes[..came.len]), (target, &b"well"[..]));
        assert!(here.receive(&mut bytes).is_none());
    }
}
