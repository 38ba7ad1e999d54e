use super::*;

#[test]
fn the_numbers_are_those_of_upstream() {
    let known = [
        (0x0000_0040, Message::Data(64)),
        (0x1fff_ffff, Message::Data((1 << 29) - 1)),
        (0x8000_0180, Message::Credit(384)),
        (0xc000_0003, Message::Iomap(3)),
        (0xe000_0000, Message::Control(Control::Disconnect)),
        (0xe000_0002, Message::Control(Control::Shutdown)),
    ];
    for (number, message) in known {
        assert_eq!(Message::parse(number), message, "{number:08x}");
        assert_eq!(message.immediate(), number);
    }
}

#[test]
fn what_no_peer_sends_is_unknown() {
    for kind in [1, 2, 3, 5] {
        let number = kind << 29 | 7;
        assert_eq!(Message::parse(number), Message::Unknown(number));
    }
    // a keepalive is never an immediate
    assert_eq!(Message::parse(0xe000_0001), Message::Unknown(0xe000_0001));
    assert_eq!(Message::parse(0xe000_0003), Message::Unknown(0xe000_0003));
}

#[test]
fn only_the_low_half_of_a_limit_counts() {
    assert_eq!(Message::parse(0x8001_0180), Message::Credit(384));
}
