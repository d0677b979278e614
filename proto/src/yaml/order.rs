//! The order in which upstream's emitter writes the keys of a map: as people count (`a2` before `a10`), signs before
//! digits before letters.

use std::cmp::Ordering;

/// Sorts what has keys. Upstream's order is not transitive (`15a` before `16` before `150` before `15a`), which the
/// standard library's sort may not be asked for.
pub(super) fn sort<T>(mut entries: Vec<(&str, T)>) -> Vec<(&str, T)> {
    if entries.len() < 2 {
        return entries;
    }
    let right = entries.split_off(entries.len() / 2);
    let (left, right) = (sort(entries), sort(right));
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        merged.extend(if compare(b.0, a.0).is_lt() { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

fn compare(a: &str, b: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    match a.iter().zip(&b).position(|(x, y)| x != y) {
        None => a.len().cmp(&b.len()),
        Some(at) => differing(&a, &b, at),
    }
}

/// Compares where two keys begin to differ.
fn differing(a: &[char], b: &[char], at: usize) -> Ordering {
    let (x, y) = (a[at], b[at]);
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x.cmp(&y),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // What differs may be within a number, where a zero counts if something stands before it.
    let common = a[..at].iter().rev().take_while(|c| c.is_ascii_digit());
    let within = (x == '0' || y == '0') && { common }.any(|c| *c != '0');
    let (left, right) = (number(&a[at..], within), number(&b[at..], within));
    left.cmp(&right).then(x.cmp(&y))
}

/// The number something begins with (after a one, if `within`), and its digits.
fn number(text: &[char], within: bool) -> (i64, usize) {
    let digits = text.iter().map_while(|c| c.to_digit(10));
    digits.fold((i64::from(within), 0), |(n, count), digit| {
        (n.wrapping_mul(10).wrapping_add(i64::from(digit)), count + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_as_people_count() {
        for row in [
            &["a", "b", "ba", "c"][..],
            &["", "-", ".", "1", "01", "2", "10", "A", "Z", "a"],
            &["a1", "a2", "a02", "a3", "a10", "a20b", "a100"],
            &["f:a", "f:a-b", "f:a.b", "f:a10", "f:aB", "f:ab"],
            &["12", "103", "1030"],
            &["v1", "v1alpha1", "v1beta1", "v2", "v10"],
        ] {
            let mixed = row.iter().rev().map(|key| (*key, ())).collect();
            let sorted: Vec<&str> = sort(mixed).into_iter().map(|(key, ())| key).collect();
            assert_eq!(sorted, row);
        }
        // A circle ends, whatever comes out of it.
        let circle = ["15a", "16", "150"].repeat(50).into_iter().map(|key| (key, ())).collect();
        assert_eq!(sort(circle).len(), 150);
    }
}
