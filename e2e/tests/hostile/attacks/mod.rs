//! The attacks, by what they go for. One attack is one name and one function that panics when an answer is not upstream's.

mod load;
mod names;
mod numbers;
mod objects;
mod operator;
mod walls;

use crate::client::{Answer, Arena};

/// An attack: its name, and a function that panics when an answer is not upstream's.
pub struct Attack {
    pub name: String,
    pub run: Box<dyn Fn(&Arena)>,
}

/// Every attack, the quick ones first; those that are run by name only last.
pub fn all(by_name: bool) -> Vec<Attack> {
    let mut all = vec![walls::all(), names::all(), numbers::all(), objects::all(), operator::all(), load::all()];
    if by_name {
        all.push(load::by_name_only());
    } else {
        eprintln!("SKIPPED: {} attacks by load, which run by name only: ATTACK=words", load::by_name_only().len());
    }
    all.into_iter().flatten().collect()
}

fn attack(name: &str, run: impl Fn(&Arena) + 'static) -> Attack {
    Attack { name: name.to_owned(), run: Box::new(run) }
}

/// Panics when an answer has another status code than one of these.
#[track_caller]
fn expect(answer: &Answer, statuses: &[u16], what: &str) {
    assert!(
        statuses.contains(&answer.status),
        "{what}: {} instead of {statuses:?}: {:.2000}",
        answer.status,
        answer.body
    );
}
