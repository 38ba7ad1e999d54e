//! Where tracing and fault rules look at packets.
//!
//! Off, they cost one relaxed load a turn and a branch a packet. What is built in is a small rule
//! set from the environment, so that losses can be tried on the real path:
//!
//! ```text
//! ROCEBUD_FAULT="drop=rx:1%; drop tx opcode=0x10 nth=1,4; seed=7"
//! ```
//!
//! Rules are separated by `;`. A rule is `drop` and words, separated by blanks, `=` after `drop`
//! counting as one: `rx` or `tx` (both if missing), `:P%` after it a probability, `opcode=N`,
//! `qp=N` (destination), `nth=A,B,…` (positions from 1 among the packets that the other words
//! fit). A rule drops what all of its words fit. Numbers are decimal or 0x…. `seed=N` makes the
//! dice repeat.

use std::ffi::OsString;

use rocebud_ctl::page::Control;
use rocebud_wire::{Bth, Opcode, Packet, Qpn};

use crate::log::{self, Level};

/// Which way a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// In, after its ICRC was found right.
    Rx,
    /// Out, before it is sealed.
    Tx,
}

/// What a hook wants done with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing.
    Pass,
    /// It is lost.
    Drop,
}

/// Looks at every packet.
pub trait Hook: Send {
    /// One packet. The ICRC of one that leaves is not there yet.
    fn packet(&mut self, direction: Direction, packet: &Packet<'_>) -> Verdict;

    /// The daemon wants tracing on or off, or has other fault rules.
    fn control(&mut self, _control: Control) {}
}

/// The hooks of the process.
#[derive(Default)]
pub(crate) struct Hooks {
    list: Vec<Box<dyn Hook>>,
    control: Control,
}

impl Hooks {
    pub(crate) fn from_environment() -> Self {
        let mut hooks = Self::default();
        match rules_of(std::env::var_os("ROCEBUD_FAULT")) {
            Ok(Some(rules)) => hooks.list.push(Box::new(rules)),
            Ok(None) => {}
            Err(word) => log::line(
                Level::Error,
                format_args!(
                    "ROCEBUD_FAULT: `{word}` is not understood, no rule is in force; example: \
                     drop=rx:1%; drop tx opcode=0x10 nth=1,4"
                ),
            ),
        }
        hooks
    }

    /// What the daemon asks for now; told once a turn. Nothing follows from a change yet but that
    /// hooks hear of it.
    #[inline]
    pub(crate) fn attend(&mut self, control: Control) {
        if control != self.control {
            self.control = control;
            for hook in &mut self.list {
                hook.control(control);
            }
        }
    }

    #[inline]
    pub(crate) fn packet(&mut self, direction: Direction, frame: &[u8]) -> Verdict {
        if self.list.is_empty() {
            return Verdict::Pass;
        }
        self.ask(direction, frame)
    }

    #[cold]
    fn ask(&mut self, direction: Direction, frame: &[u8]) -> Verdict {
        let Ok(packet) = Packet::parse(frame) else {
            return Verdict::Pass;
        };
        let mut hooks = self.list.iter_mut();
        if hooks.any(|h| h.packet(direction, &packet) == Verdict::Drop) {
            return Verdict::Drop;
        }
        Verdict::Pass
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hooks({})", self.list.len())
    }
}

/// The rules that a variable has; `Err` has the word that was not understood.
fn rules_of(given: Option<OsString>) -> Result<Option<FaultRules>, String> {
    let text = given.unwrap_or_default();
    let rules = FaultRules::parse(&text.to_string_lossy())?;
    Ok((!rules.rules.is_empty()).then_some(rules))
}

/// Rules of `ROCEBUD_FAULT`.
#[derive(Debug)]
pub struct FaultRules {
    rules: Vec<Rule>,
    dice: u64,
}

#[derive(Debug, Default)]
struct Rule {
    direction: Option<Direction>,
    /// Of a million.
    ppm: Option<u32>,
    opcode: Option<u8>,
    qp: Option<Qpn>,
    nth: Vec<u64>,
    seen: u64,
}

impl FaultRules {
    /// Reads rules.
    ///
    /// # Errors
    /// The word that was not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Self {
            rules: Vec::new(),
            dice: u64::from(crate::random::u32()) | 1,
        };
        for rule in text.split(';').map(str::trim).filter(|r| !r.is_empty()) {
            if let Some(seed) = rule.strip_prefix("seed=") {
                let seed = number(seed).ok_or_else(|| rule.to_owned())?;
                rules.dice = seed.wrapping_mul(2) | 1;
                continue;
            }
            let words = rule
                .strip_prefix("drop")
                .filter(|words| words.is_empty() || words.starts_with(['=', ' ', '\t']))
                .ok_or_else(|| rule.to_owned())?;
            let words = words.strip_prefix('=').unwrap_or(words);
            rules.rules.push(Rule::parse(words)?);
        }
        Ok(rules)
    }

    fn roll(&mut self) -> u32 {
        // xorshift64*: good enough for dice, and repeatable.
        self.dice ^= self.dice >> 12;
        self.dice ^= self.dice << 25;
        self.dice ^= self.dice >> 27;
        ((self.dice.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % 1_000_000) as u32
    }
}

impl Hook for FaultRules {
    fn packet(&mut self, direction: Direction, packet: &Packet<'_>) -> Verdict {
        self.judge(direction, &packet.bth)
    }
}

impl FaultRules {
    fn judge(&mut self, direction: Direction, bth: &Bth) -> Verdict {
        let roll = self.roll();
        let mut verdict = Verdict::Pass;
        for rule in &mut self.rules {
            if rule.fits(direction, bth, roll) {
                verdict = Verdict::Drop;
            }
        }
        verdict
    }
}

impl Rule {
    fn parse(words: &str) -> Result<Self, String> {
        let mut rule = Self::default();
        for word in words.split_whitespace() {
            rule.add(word).ok_or_else(|| word.to_owned())?;
        }
        Ok(rule)
    }

    /// One more condition; `None` for a word that is none, or that comes a second time.
    fn add(&mut self, word: &str) -> Option<()> {
        let (name, value) = match word.split_once(['=', ':']) {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            ("rx" | "tx", _) if self.direction.is_none() => {
                self.direction = Some(match name {
                    "rx" => Direction::Rx,
                    _ => Direction::Tx,
                });
                if let Some(percent) = value {
                    self.ppm = Some(ppm(percent)?);
                }
            }
            ("opcode", Some(value)) if self.opcode.is_none() => {
                self.opcode = Some(u8::try_from(number(value)?).ok()?);
            }
            ("qp", Some(value)) if self.qp.is_none() => {
                let qpn = number(value).filter(|qpn| *qpn <= QPN_MAX)?;
                self.qp = Some(Qpn::new(u32::try_from(qpn).ok()?));
            }
            ("nth", Some(value)) if self.nth.is_empty() => {
                let position = |text| number(text).filter(|n| *n != 0);
                self.nth = value.split(',').map(position).collect::<Option<_>>()?;
            }
            _ => return None,
        }
        Some(())
    }

    fn fits(&mut self, direction: Direction, bth: &Bth, roll: u32) -> bool {
        let Opcode(opcode) = bth.opcode;
        if self.direction.is_some_and(|d| d != direction)
            || self.opcode.is_some_and(|o| o != opcode)
            || self.qp.is_some_and(|q| q != bth.dest_qp)
            || self.ppm.is_some_and(|p| roll >= p)
        {
            return false;
        }
        self.seen += 1;
        self.nth.is_empty() || self.nth.contains(&self.seen)
    }
}

/// The largest number of a queue pair: 24 bits.
const QPN_MAX: u64 = 0xff_ffff;

/// A percentage, in parts of a million.
fn ppm(text: &str) -> Option<u32> {
    let percent: f64 = text.trim_end_matches('%').parse().ok()?;
    let fits = (0.0..=100.0).contains(&percent);
    fits.then_some((percent * 10_000.0) as u32)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use rocebud_wire::Psn;

    use super::*;

    fn drops(rules: &mut FaultRules, direction: Direction, opcode: Opcode, n: usize) -> usize {
        let bth = Bth::new(opcode, Qpn::new(0x5001), Psn::new(0));
        (0..n)
            .filter(|_| rules.judge(direction, &bth) == Verdict::Drop)
            .count()
    }

    #[test]
    fn a_percentage_drops_about_that_many_one_way() {
        let mut rules = FaultRules::parse("drop=rx:1%; seed=3").unwrap();
        let n = drops(&mut rules, Direction::Rx, Opcode(4), 100_000);
        assert!((800..1200).contains(&n), "{n}");
        assert_eq!(drops(&mut rules, Direction::Tx, Opcode(4), 1000), 0);
    }

    #[test]
    fn nth_counts_what_the_other_words_fit() {
        let mut rules = FaultRules::parse("drop tx opcode=0x10 nth=1,4").unwrap();
        assert_eq!(drops(&mut rules, Direction::Tx, Opcode(4), 9), 0);
        assert_eq!(drops(&mut rules, Direction::Tx, Opcode(0x10), 1), 1);
        assert_eq!(drops(&mut rules, Direction::Tx, Opcode(0x10), 2), 0);
        assert_eq!(drops(&mut rules, Direction::Tx, Opcode(0x10), 9), 1);
    }

    #[test]
    fn nonsense_is_named() {
        for (text, word) in [
            ("dorp rx", "dorp rx"),
            ("droprx", "droprx"),
            ("drop rx:x%", "rx:x%"),
            ("drop rx:", "rx:"),
            ("drop rx:101%", "rx:101%"),
            ("drop rx:-1%", "rx:-1%"),
            ("drop rx:NaN", "rx:NaN"),
            ("drop opcode=999", "opcode=999"),
            ("drop opcode=", "opcode="),
            ("drop opcode", "opcode"),
            ("drop qp=0x1000000", "qp=0x1000000"),
            ("drop qp=0x", "qp=0x"),
            ("drop nth=0", "nth=0"),
            ("drop nth=1,,2", "nth=1,,2"),
            ("drop nth=1,x", "nth=1,x"),
            ("drop sideways", "sideways"),
            ("drop rx tx", "tx"),
            ("drop opcode=4 opcode=5", "opcode=5"),
            ("drop rx; seed=", "seed="),
            ("drop rx; seed=1e3", "seed=1e3"),
        ] {
            let why = FaultRules::parse(text).map(|_| text).unwrap_err();
            assert_eq!(why, word);
        }
    }

    #[test]
    fn a_variable_that_is_no_rules_is_named_and_one_that_is_empty_is_none() {
        use std::os::unix::ffi::OsStringExt as _;
        for nothing in [None, Some("".into()), Some(" ; ".into())] {
            assert!(matches!(rules_of(nothing), Ok(None)));
        }
        assert!(matches!(rules_of(Some("drop rx".into())), Ok(Some(_))));
        let garbage = OsString::from_vec(vec![b'd', 0xff]);
        assert_eq!(rules_of(Some(garbage)).err().as_deref(), Some("d\u{fffd}"));
        assert_eq!(rules_of(Some("x".into())).err().as_deref(), Some("x"));
    }
}
