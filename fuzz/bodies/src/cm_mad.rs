//! Management datagrams: 256 bytes are one, which must come out of the codec as it went in and
//! harm nothing; anything else is a program, in which applications on two hosts connect,
//! disconnect and die while the network loses, doubles, delays and forges.
//!
//! Promises: no panic; the manager's tables never contradict each other; an application hears of
//! its connections only, and nothing after the last event; in the end nothing is left.

mod story;

use rocebud_cm::hello::{Greeter, Hello, Manners};
use rocebud_cm::ip::IpCm;
use rocebud_cm::{Bind, Config, Ends, Event, Listen, MAD_LEN, Manager, Message};
use rocebud_objects::Instant;
use rocebud_wire::Gid;

use crate::input::Input;

/// See the module.
pub fn run(data: &[u8]) {
    if data.len() == MAD_LEN {
        codec(data);
        hello(data);
        one_message(data);
    } else {
        story::run(Input::new(data));
    }
}

/// A manager whose numbers are plain, so that programs find them again.
fn manager(first: u32) -> Manager {
    let mut last = first;
    let next = move || {
        last = last.wrapping_add(1);
        last
    };
    Manager::new(Config::default(), Box::new(next))
}

/// Every service there is.
fn listen_to_all(manager: &mut Manager) {
    let what = Listen {
        service_id: 0,
        mask: 0,
        bind: Bind::Any,
        backlog: 16,
    };
    manager.listen(what).expect("the first listener");
}

/// What was read is written as it was read.
fn codec(mad: &[u8]) {
    let Ok((header, message)) = Message::parse(mad) else {
        return;
    };
    let again = message.emit(header.tid, header.attr_mod);
    let (header_2, message_2) = Message::parse(&again[..]).expect("what was written");
    assert_eq!(message, message_2);
    assert_eq!(
        (header.tid, header.attr_mod),
        (header_2.tid, header_2.attr_mod)
    );
    assert_eq!(message_2.emit(header.tid, header.attr_mod), again);
    assert_eq!(message.attr_id(), header.attr_id);
    assert!(!message.name().is_empty());
    if let Message::Req(req) = &message
        && let Ok(named) = IpCm::parse(&req.private_data)
    {
        assert_eq!(IpCm::parse(&named.emit()), Ok(named));
    }
}

/// A host that waits for a peer's hello believes none that it did not ask for.
fn hello(mad: &[u8]) {
    let ours = Hello::new(1, 128, 0, 0);
    let mut greeter = Greeter::new(Manners::default(), ours, Box::new(|| 7));
    let ends = Ends::default();
    greeter.look(Instant(1), ends);
    let asked = greeter.poll_transmit().is_some();
    let known = greeter.handle_mad(Instant(2), ends, mad);
    let told = greeter.poll_met();
    if let Some(hello) = told.and_then(|met| met.hello) {
        let (header, read) = rocebud_cm::hello::parse(mad).expect("one of the class");
        assert!(known && asked && read == hello && header.tid == 7 << 32 | 7);
        assert_eq!(greeter.look(Instant(3), ends), Some(hello));
        let later = Instant(3) + Manners::default().fresh_ns;
        greeter.doubt(later, ends);
        let asked = core::iter::from_fn(|| greeter.poll_transmit()).count();
        assert_eq!(asked, 1, "once more");
    }
}

/// A host that offers everything gets the message twice, from the addresses that it names.
fn one_message(mad: &[u8]) {
    let mut host = manager(0);
    listen_to_all(&mut host);
    let named = match Message::parse(mad) {
        Ok((_, Message::Req(req))) => IpCm::parse(&req.private_data).ok(),
        Ok((_, Message::SidrReq(req))) => IpCm::parse(&req.private_data).ok(),
        _ => None,
    };
    let (remote, local) = named.map_or((Gid::ZERO, Gid::ZERO), |ip| ip.gids());
    let ends = Ends {
        port: 1,
        local,
        remote,
    };
    for _ in 0..2 {
        host.handle_mad(Instant(1), ends, mad);
    }
    assert_eq!(host.contradiction(), None);
    let mut heard = 0;
    while let Some(event) = host.poll_event() {
        assert!(matches!(event, Event::Request(_) | Event::SidrRequest(_)));
        heard += 1;
        host.forget(Instant(2), event.conn());
    }
    assert!(heard <= 1, "one message is one request");
    while let Some(answer) = host.poll_transmit() {
        Message::parse(&answer.mad[..]).expect("what we send");
    }
    assert_eq!((host.connections(), host.contradiction()), (0, None));
}
