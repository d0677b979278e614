//! Sets of completion indexes in their stored form, `1,3-5,7`.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::Job;

use crate::engine::object;
use crate::engine::pod::Pod;

/// The annotation and label with a pod's completion index.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Whether the job's pods have completion indexes.
#[must_use]
pub fn indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|s| s.completion_mode.as_deref()) == Some("Indexed")
}

/// The completion index of a pod.
#[must_use]
pub fn of(pod: &Pod) -> Option<i32> {
    object::annotation(&pod.metadata, INDEX)?.parse().ok().filter(|i| *i >= 0)
}

/// Read the stored form; indexes at or beyond `completions` are dropped.
#[must_use]
pub fn parse(text: &str, completions: i32) -> BTreeSet<i32> {
    let mut out = BTreeSet::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else { continue };
        out.extend(first..=last.min(completions - 1));
    }
    out
}

/// The stored form: runs of three and more are written with a dash.
#[must_use]
pub fn format(indexes: &BTreeSet<i32>) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut run: Option<(i32, i32)> = None;
    let mut push = |run: Option<(i32, i32)>| {
        if let Some((a, b)) = run {
            parts.push(match b - a {
                0 => a.to_string(),
                1 => format!("{a},{b}"),
                _ => format!("{a}-{b}"),
            });
        }
    };
    for &i in indexes {
        run = match run {
            Some((a, b)) if b + 1 == i => Some((a, i)),
            before => {
                push(before);
                Some((i, i))
            }
        };
    }
    push(run);
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_form() {
        for (text, list) in [
            ("", vec![]),
            ("0", vec![0]),
            ("0,1", vec![0, 1]),
            ("1,3-5,7", vec![1, 3, 4, 5, 7]),
            ("0-2", vec![0, 1, 2]),
        ] {
            let set: BTreeSet<i32> = list.into_iter().collect();
            assert_eq!(parse(text, 10), set, "{text}");
            assert_eq!(format(&set), text);
        }
        assert_eq!(format(&parse("0-9", 3)), "0-2");
    }
}
