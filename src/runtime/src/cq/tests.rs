use super::*;

fn cq(cqe: u32) -> (Arc<Cq>, Arc<CompChannel>) {
    cq_with(cqe, CqOptions::default())
}

fn cq_with(cqe: u32, options: CqOptions) -> (Arc<Cq>, Arc<CompChannel>) {
    let channel = Arc::new(CompChannel::new().unwrap());
    let context = Arc::new(ContextShared::new(1, Arc::default()).unwrap());
    let cq = Cq::new(CqId(3), cqe, Some(channel.clone()), context, 99, options);
    (Arc::new(cq), channel)
}

fn wc(wr_id: u64) -> Wc {
    Wc {
        wr_id,
        qp_num: Qpn::new(wr_id as u32 % 2),
        ..Wc::default()
    }
}

fn failed(wr_id: u64) -> Wc {
    Wc {
        status: WcStatus::RetryExcErr,
        ..wc(wr_id)
    }
}

/// A completion that came alone.
fn push(cq: &Arc<Cq>, wc: Wc, solicited: bool) -> Result<Option<u64>, CqOverrun> {
    Ok(match cq.push(wc, solicited)? {
        Event::No => None,
        Event::At(due_ns) => Some(due_ns),
        Event::Now => {
            cq.notify();
            None
        }
    })
}

fn drain(cq: &Cq) -> Vec<u64> {
    let mut out = [Wc::default(); 2];
    let mut ids = Vec::new();
    loop {
        let n = cq.take(&mut out);
        if n == 0 {
            return ids;
        }
        ids.extend(out[..n].iter().map(|w| w.wr_id));
    }
}

#[test]
fn completions_come_out_in_order() {
    let (cq, channel) = cq(8);
    for id in 0..5 {
        push(&cq, wc(id), false).unwrap();
    }
    assert_eq!(drain(&cq), [0, 1, 2, 3, 4]);
    assert!(channel.is_empty(), "a fresh queue is not armed");
}

#[test]
fn an_arm_makes_one_event() {
    let (cq, channel) = cq(8);
    cq.arm(false);
    push(&cq, wc(1), false).unwrap();
    push(&cq, wc(2), false).unwrap();
    assert_eq!(channel.len(), 1);
    assert_eq!(
        channel.try_take().unwrap().0.user.load(Ordering::Relaxed),
        99
    );
}

#[test]
fn arming_fires_at_once_for_what_waits() {
    let (cq, channel) = cq(8);
    push(&cq, wc(1), false).unwrap();
    cq.arm(true);
    assert_eq!(channel.len(), 0, "not solicited");
    cq.arm(false);
    assert_eq!(channel.len(), 1);
    push(&cq, wc(2), true).unwrap();
    assert_eq!(channel.len(), 1, "it is disarmed again");
}

#[test]
fn a_single_completion_that_an_event_announced_makes_no_second_one() {
    let (cq, channel) = cq(8);
    cq.arm(false);
    push(&cq, wc(1), false).unwrap();
    assert_eq!(channel.len(), 1);
    cq.arm(false);
    assert_eq!(channel.len(), 1, "announced, though not polled yet");
    push(&cq, wc(2), false).unwrap();
    assert_eq!(channel.len(), 2, "and the arm still stands");
    push(&cq, wc(3), false).unwrap();
    let mut one = [Wc::default()];
    assert_eq!(cq.take(&mut one), 1);
    cq.arm(false);
    assert_eq!(channel.len(), 3, "the third came since");
}

/// perftest's `-e -b -q 8` arms, polls a few, and waits for the next event with the rest unpolled; RNICs
/// make that event, since they look at what is unpolled when a queue is armed.
#[test]
fn a_program_that_polls_few_at_a_time_hears_of_the_rest() {
    let (cq, channel) = cq(80);
    cq.arm(false);
    for id in 0..80 {
        push(&cq, wc(id), false).unwrap();
    }
    let mut polled = 0;
    while channel.try_take().is_some() {
        cq.arm(false);
        polled += cq.take(&mut [Wc::default(); 10]);
    }
    assert_eq!(polled, 80);
}

#[test]
fn solicited_only_waits_for_solicited_or_error() {
    let (queue, channel) = cq(8);
    queue.arm(true);
    push(&queue, wc(1), false).unwrap();
    assert_eq!(channel.len(), 0);
    push(&queue, wc(2), true).unwrap();
    assert_eq!(channel.len(), 1);
    let (queue, channel) = cq(8);
    queue.arm(true);
    push(&queue, failed(1), false).unwrap();
    assert_eq!(channel.len(), 1);
}

#[test]
fn solicited_does_not_weaken_any_but_any_strengthens_solicited() {
    let (queue, channel) = cq(8);
    queue.arm(false);
    queue.arm(true);
    push(&queue, wc(1), false).unwrap();
    assert_eq!(channel.len(), 1);
    let (queue, channel) = cq(8);
    queue.arm(true);
    queue.arm(false);
    push(&queue, wc(1), false).unwrap();
    assert_eq!(channel.len(), 1);
}

#[test]
fn a_full_queue_overruns_for_good_and_keeps_what_it_has() {
    let (cq, _) = cq(2);
    push(&cq, wc(1), false).unwrap();
    push(&cq, wc(2), false).unwrap();
    assert!(push(&cq, wc(3), false).is_err());
    assert!(cq.is_overrun());
    assert_eq!(drain(&cq), [1, 2]);
    assert!(push(&cq, wc(4), false).is_err());
}

#[test]
fn resizing_keeps_what_waits_or_refuses() {
    let (cq, _) = cq(4);
    for id in 0..4 {
        push(&cq, wc(id), false).unwrap();
    }
    assert!(cq.resize(3).is_err());
    cq.resize(6).unwrap();
    push(&cq, wc(4), false).unwrap();
    assert_eq!(cq.cqe(), 6);
    assert_eq!(drain(&cq), [0, 1, 2, 3, 4]);
}

#[test]
fn purging_takes_one_queue_pair_and_leaves_the_others_in_order() {
    let (cq, _) = cq(8);
    for id in 0..6 {
        push(&cq, wc(id), false).unwrap();
    }
    cq.purge(Qpn::new(1));
    assert_eq!(drain(&cq), [0, 2, 4]);
}

#[test]
fn events_unread_vanish_with_the_queue() {
    let (cq, channel) = cq(8);
    cq.arm(false);
    push(&cq, wc(1), false).unwrap();
    assert_eq!(channel.len(), 1);
    cq.settle();
    assert_eq!(channel.len(), 0);
}

#[test]
fn with_overruns_ignored_the_newest_take_the_oldest_ones_places() {
    let options = CqOptions {
        ignore_overrun: true,
        ..CqOptions::default()
    };
    let (cq, _) = cq_with(3, options);
    for id in 0..5 {
        push(&cq, wc(id), false).unwrap();
    }
    assert!(!cq.is_overrun());
    assert_eq!(drain(&cq), [2, 3, 4]);
}

#[test]
fn times_are_on_completions_that_asked_for_them_alone() {
    let options = CqOptions {
        timestamps: true,
        ..CqOptions::default()
    };
    let (cq, _) = cq_with(3, options);
    let before = sys::monotonic_ns();
    push(&cq, wc(1), false).unwrap();
    push(&cq, wc(2), false).unwrap();
    let [first, second] = [cq.take_one().unwrap(), cq.take_one().unwrap()];
    assert!(before <= first.timestamp_ns && first.timestamp_ns <= second.timestamp_ns);
    assert_eq!((second.wc.wr_id, second.wallclock_ns), (2, 0));
    assert!(cq.take_one().is_none());
}

const MODERATE: Moderation = Moderation {
    count: 3,
    period_us: 1_000,
};

#[test]
fn a_moderated_queue_waits_for_enough_completions() {
    let (cq, channel) = cq(8);
    cq.moderate(MODERATE);
    cq.arm(false);
    let due = push(&cq, wc(1), false).unwrap();
    assert!(due.is_some(), "somebody must look at the clock");
    assert_eq!(push(&cq, wc(2), false), Ok(None), "it looks already");
    assert_eq!(channel.len(), 0);
    push(&cq, wc(3), false).unwrap();
    assert_eq!(channel.len(), 1);
    push(&cq, wc(4), false).unwrap();
    assert_eq!(channel.len(), 1, "not armed");
}

#[test]
fn a_moderated_queue_waits_no_longer_than_its_period() {
    let (cq, channel) = cq(8);
    cq.moderate(MODERATE);
    cq.arm(false);
    let due = push(&cq, wc(1), false).unwrap().unwrap();
    assert_eq!(cq.fire_if_due(due - 1), Some(due));
    assert_eq!(channel.len(), 0);
    assert_eq!(cq.fire_if_due(due), None);
    assert_eq!(channel.len(), 1);
}

#[test]
fn moderation_counts_what_the_arm_wants_and_ends_at_once_when_it_is_switched_off() {
    let (cq, channel) = cq(8);
    cq.moderate(MODERATE);
    cq.arm(true);
    for id in 0..3 {
        push(&cq, wc(id), false).unwrap();
    }
    push(&cq, wc(3), true).unwrap();
    assert_eq!(channel.len(), 0, "one solicited");
    cq.moderate(Moderation::default());
    assert_eq!(channel.len(), 1);
}
