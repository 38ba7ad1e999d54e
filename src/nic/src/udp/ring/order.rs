//! Which comes first: what the socket has, or a record of its ring.

/// Looks at a socket in vain, while a record waited for what should have been there, after which that is
/// given up. One is enough if all came by one processor, as what was counted before the record is queued
/// before it; several of them are several times as far.
const VAIN_LOOKS_MAX: u32 = 64;

/// The same while no record waits. Then the only price of a loss is a look at the socket with each poll, but
/// who gives up a datagram that is counted and not queued yet takes what comes behind it first; and a
/// processor may stand still between the two, for milliseconds in a virtual machine.
const IDLE_LOOKS_MAX: u32 = 1 << 16;

/// What was known before a look at the socket.
#[derive(Clone, Copy, Debug)]
pub(in crate::udp) struct Known {
    /// Datagrams counted.
    pub(super) passed: u64,
    /// So many came before the record that is next.
    pub(super) after: Option<u64>,
}

/// The reader's place among the datagrams of a socket. Counts wrap.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Datagrams read or given up.
    read: u64,
    vain_looks: u32,
    idle_looks: u32,
}

impl Order {
    /// The reader's place when it knows of so many datagrams.
    pub(super) fn at(read: u64) -> Self {
        Self {
            read,
            ..Self::default()
        }
    }

    /// The socket has something that came before a record which so many datagrams came before.
    #[inline]
    pub(super) fn is_ahead(&self, after: u64) -> bool {
        after.wrapping_sub(self.read).cast_signed() > 0
    }

    /// Nothing is in the socket when so many have `passed`.
    #[inline]
    pub(super) fn is_dry(&self, passed: u64) -> bool {
        passed == self.read
    }

    /// A datagram was read, and so many have `passed` by now.
    pub(super) fn has_read(&mut self, passed: u64) {
        (self.vain_looks, self.idle_looks) = (0, 0);
        self.read = self.read.wrapping_add(1);
        // One that was given up, or was there before anybody counted.
        if passed.wrapping_sub(self.read).cast_signed() < 0 {
            self.read = passed;
        }
    }

    /// The socket was empty, and this was known before that was seen.
    pub(super) fn found_none(&mut self, before: Known) {
        if self.is_dry(before.passed) {
            (self.vain_looks, self.idle_looks) = (0, 0);
            return;
        }
        if let Some(after) = before.after.filter(|after| self.is_ahead(*after)) {
            self.vain_looks += 1;
            if self.vain_looks >= VAIN_LOOKS_MAX {
                self.give_up(after);
            }
            return;
        }
        self.idle_looks += 1;
        if self.idle_looks >= IDLE_LOOKS_MAX {
            self.give_up(before.passed);
        }
    }

    fn give_up(&mut self, until: u64) {
        *self = Self::at(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a reader that has read `n` of as many.
    fn after(n: u64) -> Order {
        let mut order = Order::default();
        (1..=n).for_each(|passed| order.has_read(passed));
        order
    }

    const fn known(passed: u64, after: Option<u64>) -> Known {
        Known { passed, after }
    }

    #[test]
    fn what_is_counted_and_not_queued_yet_is_waited_for() {
        let mut order = after(4);
        // The fifth is counted, and queued after the looks; behind it comes a record.
        for _ in 0..IDLE_LOOKS_MAX - 1 {
            order.found_none(known(5, None));
        }
        assert!(order.is_ahead(5));
        order.has_read(5);
        assert!(!order.is_ahead(5));
        assert!(order.is_dry(5));
    }

    #[test]
    fn what_is_counted_after_a_look_is_not_given_up_by_it() {
        let mut order = after(4);
        for _ in 0..2 * IDLE_LOOKS_MAX {
            order.found_none(known(4, None));
        }
        assert!(order.is_ahead(5));
    }

    #[test]
    fn what_was_lost_is_given_up() {
        for (waiting, most) in [(Some(6), VAIN_LOOKS_MAX), (None, IDLE_LOOKS_MAX)] {
            let mut order = after(4);
            let looks = (0..).take_while(|_| {
                order.found_none(known(7, waiting));
                order.is_ahead(6)
            });
            assert_eq!(looks.count() + 1, most as usize);
            assert_eq!(order.is_ahead(7), waiting.is_some(), "no more than that");
        }
    }

    #[test]
    fn one_that_comes_after_it_was_given_up_hides_no_later_one() {
        let mut order = after(4);
        for _ in 0..VAIN_LOOKS_MAX {
            order.found_none(known(5, Some(5)));
        }
        order.has_read(5);
        assert!(order.is_dry(5));
        assert!(order.is_ahead(6));
    }

    #[test]
    fn what_was_there_before_the_filter_counts_for_nothing() {
        let mut order = Order::default();
        order.has_read(0);
        order.has_read(0);
        assert!(order.is_dry(0));
        assert!(order.is_ahead(1));
    }

    #[test]
    fn counts_wrap() {
        let mut order = Order::at(u64::MAX);
        assert!(order.is_ahead(0));
        order.has_read(0);
        assert!(!order.is_ahead(0));
        assert!(order.is_dry(0));
    }
}
