//! Changes inputs at random, remembers those that lead somewhere new, and says what led to a failure.
//!
//! There is no instrumentation: an outcome that reads differently is taken for a sign that another path was taken.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use fuzz::Target;

/// Inputs for each target, where no time is given.
const SHORT: u64 = 3_000;
/// Most inputs that are remembered.
const CORPUS: usize = 512;
/// Longest input.
const LONGEST: usize = 4_096;
/// An input that takes longer is a finding; other programs of the machine take their time, too.
const SLOW: Duration = Duration::from_secs(20);

/// A small generator (xorshift), so that a failure can be had again by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs one target.
pub(crate) fn run(&Target { name, run: target, seeds }: &Target) {
    let seed = variable("FUZZ_SEED").unwrap_or(1);
    let mut hasher = DefaultHasher::new();
    (name, seed).hash(&mut hasher);
    let mut random = Random(hasher.finish() | 1);
    let mut corpus = seeds();
    let first = corpus.len();
    let until = variable("FUZZ_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut known = HashSet::new();
    for input in &corpus {
        known.insert(signature(&attempt(name, target, input)));
    }
    let mut count = 0_u64;
    while until.map_or(count < SHORT, |until| Instant::now() < until) {
        count += 1;
        let input = mutated(&corpus, &mut random);
        if known.insert(signature(&attempt(name, target, &input))) {
            if corpus.len() < CORPUS {
                corpus.push(input);
            } else {
                // What there was at first stays.
                let at = first + random.below(CORPUS - first);
                corpus[at] = input;
            }
        }
    }
    println!("{name}: {count} inputs, {} outcomes", known.len());
}

fn attempt(name: &str, target: fn(&[u8]) -> String, input: &[u8]) -> String {
    let since = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| target(input)));
    let took = since.elapsed();
    let shown = || format!("{name}: input b\"{}\"", input.escape_ascii());
    assert!(took < SLOW, "took {took:?}; {}", shown());
    outcome.unwrap_or_else(|_| panic!("panicked; {}", shown()))
}

/// Hash of an outcome: of its words, not of quoted input.
fn signature(outcome: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut quoted = false;
    for c in outcome.chars().take(200) {
        quoted ^= c == '"';
        if !quoted && c.is_ascii_alphabetic() {
            c.hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Bytes and words that mean something somewhere.
const TOKENS: [&[u8]; 24] = [
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\n",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"-",
    b".",
    b"1e400",
    b"null",
    b"true",
    b"$patch",
    b"\\ud800",
    b"9223372036854775808",
    b"(",
    b")",
    b"\xe2\x80\xa8",
];

fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        let end = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.byte(),
            2 => bytes.insert(at, random.byte()),
            3 if at < end => drop(bytes.drain(at..end)),
            4 => insert(&mut bytes, at, TOKENS[random.below(TOKENS.len())]),
            5 if at < end => {
                let piece = bytes[at..end].to_vec();
                (0..=random.below(40)).for_each(|_| insert(&mut bytes, at, &piece));
            }
            6 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => bytes.truncate(at.max(bytes.len() / 2)),
        }
        bytes.truncate(LONGEST);
    }
    bytes
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}
