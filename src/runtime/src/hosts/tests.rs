use super::*;

const THERE: Gid = Gid::from_v4([10, 0, 0, 2]);

fn word(id_bound: u16) -> PeerWord {
    PeerWord {
        id_bound,
        receive_buffer: 1000,
        extensions: 0,
    }
}

fn news(word: Option<PeerWord>) -> PeerNews {
    PeerNews {
        remote: THERE.0,
        word,
    }
}

#[test]
fn processes_of_a_host_have_the_buffers_that_it_names() {
    let mut hosts = Hosts::default();
    assert_eq!(hosts.joined(THERE, 5), None);
    assert_eq!(hosts.joined(Gid::from_v4([10, 0, 0, 3]), 9), None);
    assert_eq!(hosts.heard(&news(Some(word(64)))), (&[5][..], Some(1000)));
    assert_eq!(hosts.joined(THERE, 6), Some(1000));
    assert_eq!(hosts.joined(THERE, 6), None, "told already");
    assert_eq!(hosts.heard(&news(None)), (&[5, 6][..], None));
    let silent = PeerWord {
        receive_buffer: 0,
        ..word(64)
    };
    assert_eq!(hosts.heard(&news(Some(silent))), (&[5, 6][..], None));
}

#[test]
fn no_more_hosts_are_kept_than_are_named() {
    let mut hosts = Hosts::default();
    for n in 0..2 * HOSTS_MAX as u32 {
        hosts.joined(Gid::from_v4(n.to_be_bytes()), 1);
    }
    assert_eq!(hosts.list.len(), HOSTS_MAX);
}
