use super::*;

const TCP: u16 = 0x106;
const UDP: u16 = 0x111;

fn claim(id: u32, ip: &str) -> Claim {
    Claim {
        id,
        ip: ip.parse().expect("an address"),
        scope: 0,
        reuse: false,
        family_only: false,
    }
}

fn ports() -> Ports {
    Ports::new((40000, 40003))
}

#[test]
fn a_port_of_one_address_is_taken_once() {
    let mut ports = ports();
    let take = |ports: &mut Ports, c| ports.take(TCP, 7174, c, false, 0);
    assert_eq!(take(&mut ports, claim(1, "10.0.0.1")), Ok(7174));
    assert_eq!(take(&mut ports, claim(2, "10.0.0.1")), Err(EADDRINUSE));
    assert_eq!(take(&mut ports, claim(3, "0.0.0.0")), Err(EADDRNOTAVAIL));
    assert_eq!(take(&mut ports, claim(4, "10.0.0.2")), Ok(7174));
    ports.release(TCP, 7174, 1);
    assert_eq!(take(&mut ports, claim(2, "10.0.0.1")), Ok(7174));
}

#[test]
fn spaces_have_ports_of_their_own() {
    let mut ports = ports();
    assert_eq!(ports.take(TCP, 7174, claim(1, "::"), false, 0), Ok(7174));
    assert_eq!(ports.take(UDP, 7174, claim(2, "::"), false, 0), Ok(7174));
}

#[test]
fn low_ports_are_for_the_privileged() {
    let mut ports = ports();
    assert_eq!(ports.take(TCP, 1023, claim(1, "::"), false, 0), Err(EACCES));
    assert_eq!(ports.take(TCP, 1023, claim(1, "::"), true, 0), Ok(1023));
}

#[test]
fn whoever_asks_for_none_gets_a_free_one_until_there_is_none() {
    let mut ports = ports();
    let mut got: Vec<u16> = (0..4)
        .map(|i| {
            ports
                .take(TCP, 0, claim(i, "10.0.0.1"), false, 7)
                .expect("free")
        })
        .collect();
    got.sort_unstable();
    assert_eq!(got, [40000, 40001, 40002, 40003]);
    let none = ports.take(TCP, 0, claim(9, "10.0.0.2"), false, 7);
    assert_eq!(none, Err(EADDRNOTAVAIL));
}

#[test]
fn sharing_ends_when_one_listens() {
    let mut ports = ports();
    let sharing = |id| Claim {
        reuse: true,
        ..claim(id, "10.0.0.1")
    };
    assert_eq!(ports.take(TCP, 5000, sharing(1), false, 0), Ok(5000));
    assert_eq!(ports.listen(TCP, 5000, &sharing(1)), Ok(()));
    assert_eq!(ports.take(TCP, 5000, sharing(2), false, 0), Ok(5000));
    assert_eq!(ports.listen(TCP, 5000, &sharing(2)), Err(EADDRINUSE));
    let alone = ports.take(TCP, 5000, claim(3, "10.0.0.1"), false, 0);
    assert_eq!(alone, Err(EADDRINUSE));
}

#[test]
fn families_are_apart_if_both_want_it() {
    let mut ports = ports();
    let only = |id, ip| Claim {
        family_only: true,
        ..claim(id, ip)
    };
    assert_eq!(
        ports.take(TCP, 5000, only(1, "0.0.0.0"), false, 0),
        Ok(5000)
    );
    assert_eq!(ports.take(TCP, 5000, only(2, "::"), false, 0), Ok(5000));
    let both = ports.take(TCP, 5000, claim(3, "::"), false, 0);
    assert_eq!(both, Err(EADDRNOTAVAIL));
}
