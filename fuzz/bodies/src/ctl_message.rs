//! What library and daemon say to each other, said by a liar: bytes as messages, a page-set full
//! of nonsense, a daemon that answers anything, and clients that say anything to a real daemon.
//!
//! The first byte of an input chooses. Nothing may panic or hang; what decodes encodes to the same
//! value; the daemon goes on serving others.

mod daemon;
mod library;
mod pages;

use rocebud_ctl::forward;
use rocebud_ctl::messages::{self, Announcement, Answer, Hello, Request, Welcome};

/// See the module.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 5 {
        0 => decode(rest),
        1 => forwarded(rest),
        2 => pages::play(rest),
        3 => library::play(rest),
        // Needs a place of its own; without one there is nothing to judge.
        _ if crate::place::entered() => daemon::play(rest),
        _ => {}
    }
}

/// Any bytes as every kind of message.
fn decode(bytes: &[u8]) {
    if let Some(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }
    if let Some(welcome) = Welcome::decode(bytes) {
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
    }
    round_trip::<Request>(bytes);
    round_trip::<Answer>(bytes);
    round_trip::<Announcement>(bytes);
}

fn round_trip<T>(bytes: &[u8])
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    match messages::decode::<T>(bytes) {
        Ok(message) => {
            let again = messages::encode(&message).expect("what was read can be written");
            assert_eq!(messages::decode::<T>(&again), Ok(message));
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error}"),
    }
}

/// Any bytes as frames that were handed on.
fn forwarded(bytes: &[u8]) {
    let Some((header, frames)) = forward::unpack(bytes) else {
        return;
    };
    let mut again = header.encode().to_vec();
    again.extend_from_slice(&bytes[forward::HEADER_BYTES..]);
    let (header_again, frames_again) = forward::unpack(&again).expect("what was read");
    assert_eq!(header_again, header);
    assert!(frames_again.eq(frames));
}
