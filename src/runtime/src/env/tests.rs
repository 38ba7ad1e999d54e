use super::*;
use crate::cq::{CompChannel, CqOptions};

/// As `ib_send_lat -e` has it: a queue for each direction, both armed, both events on one channel.
fn two_queues() -> (Directory, [Arc<Cq>; 2], Arc<CompChannel>) {
    let mut dir = Directory::default();
    let channel = Arc::new(CompChannel::new().unwrap());
    let context = Arc::new(ContextShared::new(1, Arc::default()).unwrap());
    let cqs = [0, 1].map(|_| {
        let (channel, context) = (Some(Arc::clone(&channel)), Arc::clone(&context));
        let cq = Cq::new(dir.next_cq(), 8, channel, context, 0, CqOptions::default());
        let cq = Arc::new(cq);
        cq.arm(false);
        dir.add_cq(Arc::clone(&cq));
        cq
    });
    (dir, cqs, channel)
}

#[test]
fn whom_one_event_wakes_finds_whatever_came_with_it() {
    let (dir, [receives, sends], channel) = two_queues();
    dir.gather();
    dir.complete(receives.id, Wc::default(), false).unwrap();
    assert!(
        channel.is_empty(),
        "the acknowledgement behind it is not read yet"
    );
    dir.complete(sends.id, Wc::default(), false).unwrap();
    dir.tell();
    assert_eq!(channel.len(), 2);
    assert!(receives.has_entries() && sends.has_entries());
    dir.tell();
    assert_eq!(channel.len(), 2, "told once");
}

#[test]
fn an_event_gathered_is_not_made_again_by_arming() {
    let (dir, [receives, _], channel) = two_queues();
    dir.gather();
    dir.complete(receives.id, Wc::default(), false).unwrap();
    receives.arm(false);
    dir.tell();
    assert_eq!(channel.len(), 1);
}

#[test]
fn what_comes_alone_is_told_at_once() {
    let (dir, [_, sends], channel) = two_queues();
    dir.complete(sends.id, Wc::default(), false).unwrap();
    assert_eq!(channel.len(), 1);
}
