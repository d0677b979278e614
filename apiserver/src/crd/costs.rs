//! Estimated costs of the rules of a version, with the limits that they keep. Answers for upstream's
//! `StaticEstimatedCostLimit`, `StaticEstimatedCRDCostLimit`.

use shared::status::field::{Error, Path};

/// Maximum cost of one rule on any object.
pub(super) const RULE_COST: u64 = 10_000_000;
/// Maximum cost of all rules of a version.
const TOTAL_COST: u64 = 100_000_000;
/// Rules named when the total is too high.
const MOST_EXPENSIVE: usize = 4;

/// Estimated costs of the rules of a version.
#[derive(Default)]
pub(super) struct Costs {
    total: u64,
    /// Most expensive rules first.
    most: Vec<(Path, u64)>,
}

impl Costs {
    pub(super) fn add(&mut self, path: Path, cost: u64) {
        self.total = self.total.saturating_add(cost);
        if cost < TOTAL_COST / 100 {
            return;
        }
        self.most.push((path, cost));
        self.most.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        self.most.truncate(MOST_EXPENSIVE);
    }

    pub(super) fn judge(self, path: &Path, out: &mut Vec<Error>) {
        if self.total <= TOTAL_COST {
            return;
        }
        for (at, _) in self.most {
            let message = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            out.push(Error::forbidden(at, message));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        out.push(Error::forbidden(path, &too_expensive(what, self.total, TOTAL_COST)));
    }
}

/// Text for a cost above its limit.
pub(super) fn too_expensive(what: &str, cost: u64, limit: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
    let times = cost as f64 / limit as f64;
    let times = if times > 100.0 {
        "more than 100x".to_owned()
    } else if times < 1.5 {
        format!("{times:.6}x")
    } else {
        format!("{times:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {times} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
