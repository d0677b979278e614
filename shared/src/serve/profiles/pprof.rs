//! Profiles as bytes: pprof's `profile.proto`, as Go's runtime writes it of the processor's time.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::{Duration, SystemTime};

use proto::protobuf::{write_bytes as bytes, write_nested as nested, write_number as number};

use super::sampler::PERIOD;

/// Bytes at the start of a program that are looked at for its build's name.
const HEAD: u64 = 8 << 10;

/// A part of memory with code in it, and the file it is from.
#[derive(Debug, PartialEq)]
pub(super) struct Mapping {
    start: u64,
    limit: u64,
    offset: u64,
    file: String,
    build: String,
}

/// Of this process.
pub(super) fn mappings() -> Vec<Mapping> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut found: Vec<Mapping> = text.lines().filter_map(mapping).collect();
    for mapping in &mut found {
        mapping.build = build(&mapping.file).unwrap_or_default();
    }
    found
}

/// A line: `7f00-7f80 r-xp 0001000 08:01 123    /usr/bin/program`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_whitespace();
    let (start, limit) = fields.next()?.split_once('-')?;
    let executable = fields.next()?.contains('x');
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = hexadecimal(fields.next()?)?;
    let file = fields.nth(2).unwrap_or_default().to_owned();
    let (start, limit) = (hexadecimal(start)?, hexadecimal(limit)?);
    executable.then_some(Mapping { start, limit, offset, file, build: String::new() })
}

/// The name the linker gave a build: by it the same program with symbols is told from others.
fn build(file: &str) -> Option<String> {
    let mut head = Vec::new();
    std::fs::File::open(file).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    let note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let at = head.windows(note.len()).position(|window| window == note)? + note.len();
    Some(head.get(at..at + 20)?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Texts by their number; the first is empty.
struct Texts(Vec<String>);

impl Texts {
    fn number(&mut self, text: &str) -> i64 {
        let at = self.0.iter().position(|known| known == text).unwrap_or_else(|| {
            self.0.push(text.to_owned());
            self.0.len() - 1
        });
        i64::try_from(at).unwrap_or_default()
    }
}

fn integer(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// A profile of stacks, innermost frame first.
pub(super) fn encode(
    stacks: &BTreeMap<Vec<usize>, u64>,
    mappings: &[Mapping],
    start: SystemTime,
    time: Duration,
) -> Vec<u8> {
    let (mut out, mut texts) = (Vec::new(), Texts(vec![String::new()]));
    let kind = |field: u32, what: &str, unit: &str, texts: &mut Texts, out: &mut Vec<u8>| {
        let (what, unit) = (texts.number(what), texts.number(unit));
        nested(field, out, |out| {
            number(1, what, out);
            number(2, unit, out);
        });
    };
    kind(1, "samples", "count", &mut texts, &mut out);
    kind(1, "cpu", "nanoseconds", &mut texts, &mut out);
    let mut locations: BTreeMap<usize, i64> = BTreeMap::new();
    for (frames, count) in stacks {
        nested(2, &mut out, |out| {
            for frame in frames {
                let next = integer(locations.len() + 1);
                number(1, *locations.entry(*frame).or_insert(next), out);
            }
            number(2, integer(*count), out);
            number(2, integer(u128::from(*count) * PERIOD.as_nanos()), out);
        });
    }
    for (at, mapping) in mappings.iter().enumerate() {
        let (file, build) = (texts.number(&mapping.file), texts.number(&mapping.build));
        nested(3, &mut out, |out| {
            let fields = [at as u64 + 1, mapping.start, mapping.limit, mapping.offset];
            for (field, value) in (1..).zip(fields) {
                number(field, integer(value), out);
            }
            number(5, file, out);
            number(6, build, out);
        });
    }
    for (address, id) in &locations {
        let address = *address as u64;
        let of = mappings.iter().position(|m| (m.start..m.limit).contains(&address));
        nested(4, &mut out, |out| {
            number(1, *id, out);
            number(2, of.map_or(0, |at| integer(at + 1)), out);
            number(3, integer(address), out);
        });
    }
    let since = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    number(9, integer(since.as_nanos()), &mut out);
    number(10, integer(time.as_nanos()), &mut out);
    kind(11, "cpu", "nanoseconds", &mut texts, &mut out);
    number(12, integer(PERIOD.as_nanos()), &mut out);
    for text in &texts.0 {
        bytes(6, text.as_bytes(), &mut out);
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use proto::protobuf::fields;

    use super::*;

    /// Content of a profile.
    #[derive(Debug, Default)]
    pub(in super::super) struct Profile {
        /// Addresses, count and nanoseconds.
        pub(in super::super) samples: Vec<(Vec<u64>, i64, i64)>,
        /// Addresses that are of no mapping.
        pub(in super::super) outside: Vec<u64>,
        texts: Vec<String>,
    }

    fn numbers(message: &[u8], field: u32) -> Vec<i64> {
        let all = fields(message).filter_map(Result::ok).filter(|(n, _)| *n == field);
        all.filter_map(|(_, value)| value.int("a number").ok()).collect()
    }

    pub(in super::super) fn read(bytes: &[u8]) -> Profile {
        let all = |field: u32| {
            let of = fields(bytes).filter_map(Result::ok).filter(move |(n, _)| *n == field);
            of.filter_map(|(_, value)| value.bytes("a message").ok()).collect::<Vec<_>>()
        };
        let mut profile = Profile::default();
        let mut addresses = BTreeMap::new();
        for location in all(4) {
            let address = numbers(location, 3)[0].cast_unsigned();
            addresses.insert(numbers(location, 1)[0], address);
            if numbers(location, 2) == [0] {
                profile.outside.push(address);
            }
        }
        for sample in all(2) {
            let stack = numbers(sample, 1).iter().map(|id| addresses[id]).collect();
            let values = numbers(sample, 2);
            profile.samples.push((stack, values[0], values[1]));
        }
        profile.texts = all(6).iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        profile
    }

    #[test]
    fn mappings_of_code() {
        let line = "55d0-55d8 r-xp 00001000 08:01 123                /usr/bin/a program";
        let want = Mapping {
            start: 0x55d0,
            limit: 0x55d8,
            offset: 0x1000,
            file: "/usr/bin/a".to_owned(),
            build: String::new(),
        };
        assert_eq!(mapping(line), Some(want));
        assert_eq!(mapping("55d0-55d8 rw-p 00001000 08:01 123 /usr/bin/program"), None);
        assert_eq!(mapping("7ffd-7fff r-xp 00000000 00:00 0 [vdso]").map(|m| m.file).as_deref(), Some("[vdso]"));
        assert_eq!(mapping("nothing"), None);
        assert!(!mappings().is_empty());
    }

    #[test]
    fn profiles_are_pprofs() {
        let stacks = BTreeMap::from([(vec![0x10, 0x20], 3), (vec![0x20], 1)]);
        let code = Mapping { start: 0x10, limit: 0x18, offset: 0, file: "f".to_owned(), build: "b".to_owned() };
        let profile = read(&encode(&stacks, &[code], SystemTime::UNIX_EPOCH, Duration::from_secs(1)));
        assert_eq!(profile.samples, [(vec![0x10, 0x20], 3, 30_000_000), (vec![0x20], 1, 10_000_000)]);
        assert_eq!(profile.outside, [0x20]);
        assert_eq!(profile.texts, ["", "samples", "count", "cpu", "nanoseconds", "f", "b"]);
    }
}
