//! Local buffers of a send queue: taken in order, given back in order.

use std::collections::VecDeque;

use rocebud_fabric::Span;

/// Hands out ranges of a span round robin.
#[derive(Debug)]
pub(crate) struct Ring {
    span: Span,
    head: u64,
    live: VecDeque<Span>,
}

impl Ring {
    pub(crate) const fn new(span: Span) -> Self {
        Self {
            span,
            head: 0,
            live: VecDeque::new(),
        }
    }

    /// Takes `len` bytes at a multiple of `align`, if they are free.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<Span> {
        if self.live.is_empty() {
            self.head = 0;
        }
        let tail = self.live.front().map(|s| s.addr - self.span.addr);
        let fits = |head: u64, end: u64| {
            let addr = (self.span.addr + head).next_multiple_of(align);
            (addr - self.span.addr + len < end).then_some(Span { addr, len })
        };
        let span = match tail {
            Some(tail) if self.head <= tail => fits(self.head, tail),
            Some(tail) => fits(self.head, self.span.len).or_else(|| fits(0, tail)),
            None => fits(0, self.span.len),
        }?;
        self.head = span.addr - self.span.addr + len;
        self.live.push_back(span);
        Some(span)
    }

    /// Gives the oldest range back.
    pub(crate) fn give_back(&mut self) {
        self.live.pop_front();
    }

    /// Gives the newest range back: the request was not posted.
    pub(crate) fn undo(&mut self) {
        if let Some(span) = self.live.pop_back() {
            self.head = span.addr - self.span.addr;
        }
    }
}

/// Cuts `span` into `n` pieces that follow each other, some of them empty.
pub(crate) fn cut(span: Span, n: u32, rng: &mut rocebud_fabric::Rng) -> Vec<Span> {
    let mut cuts: Vec<u64> = (1..n).map(|_| rng.below(span.len + 1)).collect();
    cuts.sort_unstable();
    cuts.push(span.len);
    let mut from = 0;
    let mut pieces = Vec::new();
    for to in cuts {
        pieces.push(Span {
            addr: span.addr + from,
            len: to - from,
        });
        from = to;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_come_back() {
        let mut ring = Ring::new(Span {
            addr: 1001,
            len: 100,
        });
        let mut live: VecDeque<Span> = VecDeque::new();
        for round in 0..1000 {
            match ring.take(round % 40, 1) {
                Some(span) => {
                    assert!(span.addr >= 1001 && span.addr + span.len <= 1101);
                    let apart =
                        |o: &Span| o.addr + o.len <= span.addr || span.addr + span.len <= o.addr;
                    assert!(live.iter().all(apart), "{span:?} {live:?}");
                    live.push_back(span);
                }
                None => {
                    assert!(!live.is_empty());
                    live.pop_front();
                    ring.give_back();
                }
            }
        }
    }
}
