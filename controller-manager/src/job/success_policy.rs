//! Success of an indexed job of which not every index has succeeded: by the rules of its success policy. Answers for
//! upstream's `matchSuccessPolicy`.

use k8s_openapi::api::batch::v1::SuccessPolicy;

use super::indexes::IndexSet;

/// The message of the first rule that the succeeded indexes satisfy.
#[must_use]
pub fn met(policy: Option<&SuccessPolicy>, completions: i32, succeeded: &IndexSet) -> Option<String> {
    let policy = policy.filter(|_| !succeeded.is_empty())?;
    let enough = |count: Option<i32>, have: usize| count.is_some_and(|n| usize::try_from(n).is_ok_and(|n| have >= n));
    let holds = |count: Option<i32>, named: &IndexSet| {
        let have = named.common(succeeded);
        // Indexes beyond the last, of a job that became smaller, succeed no more.
        !named.is_empty() && (have == named.len() || enough(count, have))
    };
    let position = policy.rules.iter().position(|rule| match (&rule.succeeded_indexes, rule.succeeded_count) {
        (Some(text), count) => holds(count, &IndexSet::parse(text, completions)),
        (None, count) => enough(count, succeeded.len()),
    })?;
    Some(format!("Matched rules at index {position}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_first_rule_that_holds() {
        let cases: &[(&str, Value, &str, Option<usize>)] = &[
            ("all of the named", json!([{"succeededIndexes": "0,2-3"}]), "0,2,3", Some(0)),
            ("one of the named is missing", json!([{"succeededIndexes": "0,2-3"}]), "0,2", None),
            ("some of the named", json!([{"succeededIndexes": "0-4", "succeededCount": 2}]), "1,4,7", Some(0)),
            ("others do not count", json!([{"succeededIndexes": "0-4", "succeededCount": 2}]), "1,7", None),
            ("any so many", json!([{"succeededCount": 3}]), "5-7", Some(0)),
            ("the second rule", json!([{"succeededIndexes": "0"}, {"succeededCount": 1}]), "9", Some(1)),
            ("none of the named is left", json!([{"succeededIndexes": "10-12"}]), "0", None),
            (
                "all of the named, though more are asked for",
                json!([{"succeededIndexes": "0-1", "succeededCount": 3}]),
                "0-1",
                Some(0),
            ),
            ("a rule that says nothing", json!([{}]), "0", None),
            ("none of a great many", json!([{"succeededIndexes": "0-2147483646"}]), "0-8", None),
            ("nothing has succeeded", json!([{"succeededCount": 0}]), "", None),
        ];
        for (name, rules, done, want) in cases {
            let policy: SuccessPolicy = serde_json::from_value(json!({"rules": rules})).expect("policy");
            let got = met(Some(&policy), 10, &IndexSet::parse(done, 10));
            assert_eq!(got, want.map(|i| format!("Matched rules at index {i}")), "{name}");
        }
        assert_eq!(met(None, 10, &IndexSet::parse("0-9", 10)), None);
    }
}
