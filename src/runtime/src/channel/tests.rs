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
                if let Some(event) = queue.wait().unwrap() {
                    return event.1;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(10));
        queue.push(Event(acks.clone(), 42));
        assert_eq!(taker.join().unwrap(), 42);
    });
}

#[test]
fn a_closed_queue_gives_what_it_has_and_then_an_error_to_everybody() {
    let queue: EventQueue<Event> = EventQueue::new().unwrap();
    std::thread::scope(|s| {
        let takers: Vec<_> = (0..3)
            .map(|_| {
                s.spawn(|| {
                    loop {
                        match queue.wait() {
                            Ok(None) => {}
                            other => return other.map(|event| event.map(|e| e.1)),
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(10));
        queue.push(Event(Arc::default(), 7));
        queue.close();
        let mut got: Vec<_> = takers.into_iter().map(|t| t.join().unwrap()).collect();
        got.sort_by_key(Result::is_err);
        assert_eq!(got[0], Ok(Some(7)));
        let eio = |r: &Result<_, Misuse>| r.as_ref().is_err_and(|e| e.errno == Errno::EIO);
        assert!(got[1..].iter().all(eio), "{got:?}");
    });
    assert!(readable(&queue));
    sys::set_nonblocking(queue.fd.as_fd());
    assert_eq!(queue.wait().unwrap_err().errno, Errno::EIO);
}

#[test]
fn threads_that_take_at_once_get_each_event_once() {
    const EVENTS: u32 = 2000;
    let queue: EventQueue<Event> = EventQueue::new().unwrap();
    let seen = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for n in 0..4 {
            let (queue, seen) = (&queue, &seen);
            s.spawn(move || {
                loop {
                    let taken = if n % 2 == 0 {
                        queue.wait()
                    } else {
                        Ok(queue.try_take())
                    };
                    match taken {
                        Ok(Some(event)) => lock(seen).push(event.1),
                        Ok(None) if queue.is_closed() && queue.is_empty() => return,
                        Ok(None) => std::thread::yield_now(),
                        Err(_) => return,
                    }
                }
            });
        }
        for n in 0..EVENTS {
            queue.push(Event(Arc::default(), n));
            if n % 64 == 0 {
                queue.purge(|e| e.1 == n);
            }
        }
        while !queue.is_empty() {
            std::thread::yield_now();
        }
        queue.close();
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert!(seen.windows(2).all(|w| w[0] < w[1]), "one came twice");
    let purged = EVENTS.div_ceil(64) as usize;
    assert!(seen.len() >= EVENTS as usize - purged, "{}", seen.len());
}
