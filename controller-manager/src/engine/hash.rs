//! Hash labels: `pod-template-hash` and `controller-revision-hash`. Answers for upstream's `ComputeHash`,
//! `DeepHashObject`.
//!
//! Clients only rely on the form (a short label-safe word that changes with the template), not on the number.

use serde::Serialize;
use shared::fnv::Fnv32;

const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Spell a decimal number with letters that form no words.
#[must_use]
pub fn safe_encode(number: u32) -> String {
    number.to_string().bytes().map(|b| char::from(ALPHABET[usize::from(b) % ALPHABET.len()])).collect()
}

/// The hash label of a value, made distinct by `collisions`.
pub fn of<T: Serialize>(value: &T, collisions: Option<i32>) -> String {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let mut fnv = Fnv32::default().write(&bytes);
    if let Some(n) = collisions {
        fnv = fnv.write(&n.to_le_bytes());
    }
    safe_encode(fnv.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(safe_encode(1_234_567_890), "56789bcdf4");
        assert!(safe_encode(u32::MAX).bytes().all(|b| ALPHABET.contains(&b)));
        assert_ne!(of(&"x", None), of(&"x", Some(1)));
    }
}
