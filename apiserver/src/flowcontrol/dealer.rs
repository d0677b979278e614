//! Shuffle sharding: which few of many queues a flow may use. Two flows rarely share a whole hand, so one that floods
//! its own queues leaves the others at least one that is free. Pure. Answers for upstream's `pkg/util/shufflesharding`
//! (`Dealer`).

use sha2::{Digest, Sha256};

/// A flow's number: the same for the same schema and distinguisher in every server.
pub(super) fn flow_hash(schema: &str, distinguisher: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(schema.as_bytes());
    hash.update([0]);
    hash.update(distinguisher.as_bytes());
    let sum = hash.finalize();
    u64::from_le_bytes(std::array::from_fn(|i| sum[i]))
}

/// Deals `hand` different cards of a deck of `deck` by a number: its digits to the bases `deck`, `deck - 1`, … each
/// choose one of the cards that are left.
pub(super) fn deal(mut hash: u64, deck: u32, hand: u32) -> Vec<u32> {
    let mut cards: Vec<u32> = Vec::with_capacity(hand as usize);
    for dealt in 0..hand.min(deck) {
        let left = u64::from(deck - dealt);
        let mut card = u32::try_from(hash % left).unwrap_or(0);
        hash /= left;
        let mut taken = cards.clone();
        taken.sort_unstable();
        for other in taken {
            if card >= other {
                card += 1;
            }
        }
        cards.push(card);
    }
    cards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_have_different_cards_of_the_deck() {
        for n in 0..2000_u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut hand = deal(hash, 16, 4);
            assert!(hand.iter().all(|c| *c < 16), "{hand:?}");
            hand.sort_unstable();
            hand.dedup();
            assert_eq!(hand.len(), 4);
        }
        assert_eq!(deal(0, 8, 3), [0, 1, 2]);
        assert_eq!(deal(3, 1, 1), [0]);
    }

    #[test]
    fn every_card_is_dealt_equally_often() {
        let mut dealt = [0_u32; 5];
        for hash in 0..60 {
            for card in deal(hash, 5, 3) {
                dealt[card as usize] += 1;
            }
        }
        assert_eq!(dealt, [36; 5]);
    }

    #[test]
    fn flows_get_different_hands() {
        assert_eq!(flow_hash("a", "b"), flow_hash("a", "b"));
        assert_ne!(flow_hash("a", "bc"), flow_hash("ab", "c"));
    }
}
