//! The difference between two texts as a unified diff without file names.

use std::fmt::Write as _;

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// Largest table for the exact answer; bigger changes are shown as one.
const LARGEST: usize = 4_000_000;

/// A run of lines: of the old text, of the new one, and whether they are the same.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    old: std::ops::Range<usize>,
    new: std::ops::Range<usize>,
    same: bool,
}

fn runs<T: PartialEq>(old: &[T], new: &[T]) -> Vec<Run> {
    let prefix = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - prefix;
    let suffix = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let (a, b) = (&old[prefix..old.len() - suffix], &new[prefix..new.len() - suffix]);
    // Length of the longest common subsequence of what follows each pair of places.
    let width = b.len() + 1;
    let exact = (a.len() + 1).saturating_mul(width) <= LARGEST;
    let mut common = vec![0_u32; if exact { (a.len() + 1) * width } else { 0 }];
    if exact {
        for i in (0..a.len()).rev() {
            for j in (0..b.len()).rev() {
                common[i * width + j] = if a[i] == b[j] {
                    common[(i + 1) * width + j + 1] + 1
                } else {
                    common[(i + 1) * width + j].max(common[i * width + j + 1])
                };
            }
        }
    }
    let mut out: Vec<Run> = Vec::new();
    let mut push = |old: (usize, usize), new: (usize, usize), same: bool| {
        if old.0 == old.1 && new.0 == new.1 {
            return;
        }
        match out.last_mut() {
            Some(last) if last.same == same => (last.old.end, last.new.end) = (old.1, new.1),
            _ => out.push(Run { old: old.0..old.1, new: new.0..new.1, same }),
        }
    };
    push((0, prefix), (0, prefix), true);
    let (mut i, mut j) = (0, 0);
    while exact && i < a.len() && j < b.len() {
        let (x, y) = (prefix + i, prefix + j);
        if a[i] == b[j] {
            push((x, x + 1), (y, y + 1), true);
            (i, j) = (i + 1, j + 1);
        } else if common[(i + 1) * width + j] >= common[i * width + j + 1] {
            push((x, x + 1), (y, y), false);
            i += 1;
        } else {
            push((x, x), (y, y + 1), false);
            j += 1;
        }
    }
    push((prefix + i, prefix + a.len()), (prefix + j, prefix + b.len()), false);
    push((old.len() - suffix, old.len()), (new.len() - suffix, new.len()), true);
    out
}

/// Changes that are close together, with the lines around them.
fn hunks(mut runs: Vec<Run>) -> Vec<Vec<Run>> {
    if let Some(first) = runs.first_mut().filter(|r| r.same) {
        let skip = first.old.len().saturating_sub(CONTEXT);
        first.old.start += skip;
        first.new.start += skip;
    }
    if let Some(last) = runs.last_mut().filter(|r| r.same) {
        let skip = last.old.len().saturating_sub(CONTEXT);
        last.old.end -= skip;
        last.new.end -= skip;
    }
    let mut out = vec![Vec::new()];
    for run in runs {
        let apart = run.same && run.old.len() > 2 * CONTEXT;
        if apart {
            let before = Run {
                old: run.old.start..run.old.start + CONTEXT,
                new: run.new.start..run.new.start + CONTEXT,
                same: true,
            };
            let after =
                Run { old: run.old.end - CONTEXT..run.old.end, new: run.new.end - CONTEXT..run.new.end, same: true };
            if let Some(hunk) = out.last_mut() {
                hunk.push(before);
            }
            out.push(vec![after]);
        } else if let Some(hunk) = out.last_mut() {
            hunk.push(run);
        }
    }
    out.retain(|hunk| hunk.iter().any(|r| !r.same));
    out
}

fn place(range: std::ops::Range<usize>) -> String {
    match range.len() {
        1 => format!("{}", range.start + 1),
        0 => format!("{},0", range.start),
        n => format!("{},{n}", range.start + 1),
    }
}

/// The difference; empty when there is none.
pub(super) fn unified(old: &[String], new: &[String]) -> String {
    let mut text = String::new();
    for hunk in hunks(runs(old, new)) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let (a, b) = (first.old.start..last.old.end, first.new.start..last.new.end);
        let _ = writeln!(text, "@@ -{} +{} @@", place(a), place(b));
        for run in &hunk {
            let mut lines = |mark: char, lines: &[String]| {
                for line in lines {
                    let _ = writeln!(text, "{mark}{line}");
                }
            };
            if run.same {
                lines(' ', &old[run.old.clone()]);
            } else {
                lines('-', &old[run.old.clone()]);
                lines('+', &new[run.new.clone()]);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_with_context() {
        let lines = |text: &str| -> Vec<String> { text.chars().map(String::from).collect() };
        let diff = |old: &str, new: &str| unified(&lines(old), &lines(new)).replace('\n', "|");
        assert_eq!(diff("abc", "abc"), "");
        assert_eq!(diff("abcdefgh", "abcdXfgh"), "@@ -2,7 +2,7 @@| b| c| d|-e|+X| f| g| h|");
        assert_eq!(diff("a", "ab"), "@@ -1 +1,2 @@| a|+b|");
        assert_eq!(diff("", "a"), "@@ -0,0 +1 @@|+a|");
        assert_eq!(diff("1234567", "X23456Y"), "@@ -1,7 +1,7 @@|-1|+X| 2| 3| 4| 5| 6|-7|+Y|");
        assert_eq!(diff("123456789", "X2345678Y"), "@@ -1,4 +1,4 @@|-1|+X| 2| 3| 4|@@ -6,4 +6,4 @@| 6| 7| 8|-9|+Y|");
        assert_eq!(diff("abxcd", "acd"), "@@ -1,5 +1,3 @@| a|-b|-x| c| d|");
    }
}
