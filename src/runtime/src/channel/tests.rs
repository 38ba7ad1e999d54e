use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;

#[derive(Debug)]
struct Event(Arc<Acks>, u32);

impl Acked for Event {
    fn acks(&self) -> Option<&Acks> {
        Some(&self.0)
    }
}

fn readable(queue: &EventQueue<Event>) -> bool {
    sys::poll(&mut [sys::poll_fd(queue.fd())], Some(0)).unwrap() == 1
}

#[test]
fn the_descriptor_is_readable_exactly_while_events_wait() {
    let queue = EventQueue::new().unwrap();
    let acks = Arc::new(Acks::default());
    assert!(!readable(&queue));
    queue.push(Event(acks.clone(), 1));
    queue.push(Event(acks.clone(), 2));
    assert!(readable(&queue));
    assert_eq!(queue.try_take().unwrap().1, 1);
    assert!(readable(&queue));
    assert_eq!(queue.try_take().unwrap().1, 2);
    assert!(!readable(&queue));
    assert!(queue.try_take().is_none());
    queue.push(Event(acks.clone(), 3));
    queue.purge(|e| Arc::ptr_eq(&e.0, &acks));
    assert!(!readable(&queue));
}

#[test]
fn flags_set_from_outside_are_honoured() {
    let queue: EventQueue<Event> = EventQueue::new().unwrap();
    sys::set_nonblocking(queue.fd.as_fd());
    assert_eq!(queue.wait().unwrap_err().errno, Errno::EAGAIN);
}

#[test]
fn settling_waits_for_events_taken_and_for_no_other() {
    let queue = EventQueue::new().unwrap();
    let (a, b) = (Arc::new(Acks::default()), Arc::new(Acks::default()));
    for _ in 0..3 {
        queue.push(Event(a.clone(), 0));
        queue.push(Event(b.clone(), 0));
    }
    for _ in 0..6 {
        queue.try_take().unwrap();
    }
    queue.push(Event(a.clone(), 0));
    queue.purge(|e| Arc::ptr_eq(&e.0, &a));
    b.ack(3);
    b.wait_settled();
    let settled = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            a.wait_settled();
            settled.store(true, Ordering::SeqCst);
        });
        a.ack(2);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!settled.load(Ordering::SeqCst), "one is not acknowledged");
        a.ack(1);
    });
    assert!(settled.load(Ordering::SeqCst));
}

#[test]
fn a_blocked_taker_is_woken() {
    let queue: EventQueue<Event> = EventQueue::new().unwrap();
    let acks = Arc::new(Acks::default());
    std::thread::scope(|s| {
        let taker = s.spawn(|| {
            loop {
                if let Some(event) = queue.try_take() {
                    return event.1;
                }
                queue.wait().unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(10));
        queue.push(Event(acks.clone(), 42));
        assert_eq!(taker.join().unwrap(), 42);
    });
}
