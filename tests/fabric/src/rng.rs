//! Chance from a seed: SplitMix64, with probabilities as integer ratios.

/// A probability `num / den`, without floats so that every machine draws the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ratio {
    /// Favourable cases.
    pub num: u32,
    /// All cases, at least 1.
    pub den: u32,
}

impl Ratio {
    /// Never.
    pub const ZERO: Self = Self { num: 0, den: 1 };

    /// `num` in `den`.
    #[must_use]
    pub const fn new(num: u32, den: u32) -> Self {
        Self { num, den }
    }

    /// `n` in a hundred.
    #[must_use]
    pub const fn percent(n: u32) -> Self {
        Self { num: n, den: 100 }
    }
}

/// A small generator; the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator that starts from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator of its own for a part of the run, so that a draw more in one part does not
    /// shift the draws of another.
    #[must_use]
    pub fn fork(&mut self, label: u64) -> Self {
        Self::new(mix(self.next_u64() ^ mix(label)))
    }

    /// Any 64-bit number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Any 32-bit number.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// A number in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// [`Rng::range`] for 32-bit numbers.
    pub fn range_u32(&mut self, low: u32, high: u32) -> u32 {
        self.range(u64::from(low), u64::from(high)) as u32
    }

    /// [`Rng::range`] for sizes and indices.
    pub fn range_usize(&mut self, low: usize, high: usize) -> usize {
        self.range(low as u64, high as u64) as usize
    }

    /// True with the given probability.
    pub fn chance(&mut self, ratio: Ratio) -> bool {
        self.below(u64::from(ratio.den.max(1))) < u64::from(ratio.num)
    }

    /// True `n` times in a hundred.
    pub fn percent(&mut self, n: u32) -> bool {
        self.chance(Ratio::percent(n))
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `x` over all others.
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fills `buf` with the bytes of stream `seed` from position `offset` on. Every part of a stream
/// can be made anew, so that models need not keep messages.
pub fn fill(seed: u64, offset: u64, buf: &mut [u8]) {
    let word = |n: u64| mix(seed.wrapping_add(n.wrapping_mul(GOLDEN))).to_le_bytes();
    let skip = (offset % 8) as usize;
    let head = ((8 - skip) % 8).min(buf.len());
    let (head, rest) = buf.split_at_mut(head);
    head.copy_from_slice(&word(offset / 8)[skip..][..head.len()]);
    // Whole words, without a call a word: simulations spend much of their time here.
    let first = offset.div_ceil(8);
    let mut words = rest.chunks_exact_mut(8);
    let mut n = first;
    for chunk in &mut words {
        chunk.copy_from_slice(&word(n));
        n += 1;
    }
    let tail = words.into_remainder();
    tail.copy_from_slice(&word(n)[..tail.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        assert_eq!(Rng::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn ratios_hold_roughly() {
        let mut rng = Rng::new(1);
        let hits = (0..100_000)
            .filter(|_| rng.chance(Ratio::new(1, 20)))
            .count();
        assert!((4700..5300).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !rng.chance(Ratio::ZERO)));
    }

    #[test]
    fn a_stream_can_be_cut_anywhere() {
        let mut whole = [0; 100];
        fill(9, 0, &mut whole);
        for cut in 0..100 {
            let mut part = vec![0; 100 - cut];
            fill(9, cut as u64, &mut part);
            assert_eq!(part, whole[cut..]);
        }
    }
}
