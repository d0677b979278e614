//! The order of functions in the binaries: those that run while a component is idle lie side by side.
//!
//! The kernel maps code in windows of 64 KB around what runs. Where the functions of an idle component are strewn over its
//! code, nearly all of it is resident; the linker script that is written here gathers them. Names carry hashes that every
//! compiler chooses anew, so the script names parts of crates, by the beginnings of symbols.
//!
//! In: for each program an unstripped binary (`cargo rustc … -- -C strip=none`) and what valgrind's callgrind saw it run in
//! three minutes of an idle cluster with some pods (`--demangle=no`; `callgrind_control -z` after its start, `-d` at the end).
//! Out: `hack/order.ld`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Share of a part's bytes that has to run for the whole part to be gathered.
const SHARE: f64 = 0.5;
/// Pieces of a symbol that are told apart: a crate, a module and what is in it.
const DEEPEST: usize = 6;
/// Most bytes of a beginning.
const LONGEST: usize = 56;
/// Head and tail of the script.
const HEAD: &str = "/* Functions that run while a component is idle, side by side: `cargo xtask order` writes this (CONTRIBUTING.md). */
SECTIONS
{
  .text.idle :
  {
";
const TAIL: &str = "  }
}
INSERT BEFORE .text;
";

/// Writes the script from pairs of files: a binary, and what ran of it.
pub fn write(root: &Path, files: &[&str]) -> Result<()> {
    let mut parts = CodePart::default();
    for pair in files.chunks(2) {
        let [binary, ran] = pair else { bail!("what ran of {} is not given", pair.concat()) };
        let ran = std::fs::read_to_string(ran).with_context(|| format!("cannot read {ran}"))?;
        let nm = Command::new("nm").args(["-S", "--defined-only", binary]).output().context("cannot run nm")?;
        ensure!(nm.status.success(), "nm fails: {}", String::from_utf8_lossy(&nm.stderr));
        let symbols = String::from_utf8_lossy(&nm.stdout);
        ensure!(symbols.lines().next().is_some(), "{binary} has no symbols: build it with -C strip=none");
        parts.add(&symbols, &executed(&ran));
    }
    std::fs::write(root.join("hack/order.ld"), script(&parts)).context("cannot write the script")
}

/// Names of the functions that callgrind saw.
fn executed(callgrind: &str) -> BTreeSet<&str> {
    let name = |line| {
        let (_, name): (_, &str) =
            str::strip_prefix(line, "fn=").or(str::strip_prefix(line, "cfn="))?.split_once(' ')?;
        Some(name.rsplit_once('\'').map_or(name, |(name, _recursion)| name))
    };
    callgrind.lines().filter_map(name).collect()
}

/// A part of the code: all symbols with the same beginning.
#[derive(Debug, Default)]
struct CodePart {
    bytes: u64,
    executed: u64,
    parts: BTreeMap<String, CodePart>,
}

impl CodePart {
    /// Adds the functions of `nm`'s lines, such as `0000a0 000010 t _ZN4core3fmt5write17h0123456789abcdefE`.
    fn add(&mut self, symbols: &str, executed: &BTreeSet<&str>) {
        for line in symbols.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, size, "t" | "T" | "w" | "W", name] = fields.as_slice() else { continue };
            let Ok(bytes) = u64::from_str_radix(size, 16) else { continue };
            let ran = if executed.contains(name) { bytes } else { 0 };
            let mut part = &mut *self;
            for piece in pieces(name) {
                part = part.parts.entry(piece).or_default();
                part.bytes += bytes;
                part.executed += ran;
            }
        }
    }

    /// Beginnings of the symbols to be gathered, below `beginning`.
    fn gather(&self, beginning: &str, depth: usize, gathered: &mut Vec<String>) {
        for (piece, part) in &self.parts {
            let name = format!("{beginning}{piece}");
            if part.executed == 0 {
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "a share")]
            let share = part.executed as f64 / part.bytes as f64;
            if part.parts.is_empty() || depth == DEEPEST || (share >= SHARE && depth > 0) {
                gathered.push(name);
            } else {
                part.gather(&name, depth + 1, gathered);
            }
        }
    }
}

/// Splits a symbol, without its hash, where parts of the code begin: `_ZN` `4core` `3fmt` `5write`, and for methods
/// `_ZN*_$LT$` `tokio..` `runtime..`; the number before those tells the length of their whole.
fn pieces(symbol: &str) -> Vec<String> {
    let Some(path) = symbol.strip_prefix("_ZN") else {
        // The standard library comes compiled, with names of the other scheme, which have hashes within.
        return vec![if symbol.starts_with("_R") { "_R" } else { symbol }.to_owned()];
    };
    let path = path.rfind("17h").map_or(path, |hash| &path[..hash]);
    let digits = path.chars().take_while(char::is_ascii_digit).count();
    if let Some(method) = path[digits..].strip_prefix("_$LT$") {
        let parts = method.split_inclusive("..").map(str::to_owned);
        return std::iter::once("_ZN*_$LT$".to_owned()).chain(parts).collect();
    }
    let (mut parts, mut rest) = (vec!["_ZN".to_owned()], path);
    while !rest.is_empty() {
        let digits = rest.chars().take_while(char::is_ascii_digit).count();
        let length = rest[..digits].parse().unwrap_or(0_usize).saturating_add(digits);
        let Some((part, after)) = rest.split_at_checked(length.max(1)) else { break };
        parts.push(part.to_owned());
        rest = after;
    }
    parts
}

/// Writes the script of all parts that are to be gathered.
fn script(parts: &CodePart) -> String {
    let mut gathered = Vec::new();
    parts.gather("", 0, &mut gathered);
    for beginning in &mut gathered {
        beginning.truncate(LONGEST);
    }
    gathered.dedup();
    let lines = gathered.iter().map(|beginning| format!("    *(\".text.{beginning}*\")\n"));
    format!("{HEAD}{}{TAIL}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_split_where_parts_begin() {
        for (symbol, expected) in [
            ("_ZN4core3fmt5write17h0123456789abcdefE", &["_ZN", "4core", "3fmt", "5write"][..]),
            (
                "_ZN61_$LT$tokio..runtime..Task$u20$as$u20$core..Drop$GT$4drop17h0123456789abcdefE",
                &["_ZN*_$LT$", "tokio..", "runtime..", "Task$u20$as$u20$core..", "Drop$GT$4drop"],
            ),
            ("ring_core_0_17", &["ring_core_0_17"]),
            ("_ZN9", &["_ZN"]),
            ("_ZN99x", &["_ZN"]),
        ] {
            assert_eq!(pieces(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn parts_of_which_enough_runs_are_gathered() {
        let symbols = "\
            0 0010 t _ZN1a1b1c17h0000000000000000E\n\
            0 0010 t _ZN1a1b1d17h0000000000000000E\n\
            0 1000 t _ZN1a1e1f17h0000000000000000E\n\
            0 0010 t _ZN1x1y1z17h0000000000000000E\n\
            0 0010 r _ZN1q1q1q17h0000000000000000E\n";
        let callgrind = "fn=(1) _ZN1a1b1c17h0000000000000000E\n1 2\ncfn=(2) _ZN1q1q1q17h0000000000000000E'2\nfn=(1)\n";
        let mut parts = CodePart::default();
        parts.add(symbols, &executed(callgrind));
        let found = script(&parts);
        assert!(found.contains("\n    *(\".text._ZN1a1b*\")\n  }\n"), "{found}");
    }
}
