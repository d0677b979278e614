//! Addresses that go by two names, one for the first and one for all of them: clients may know either. Answers for
//! upstream's `NormalizeClusterIPs`, `normalizeNodePodCIDRs`.

use proto::Value;
use serde_json::json;

/// The names of a node's ranges in its spec.
pub(super) const RANGES: Names = Names { one: "podCIDR", all: "podCIDRs", wrapped: false };
/// The names of a pod's addresses in its status.
pub(super) const POD: Names = Names { one: "podIP", all: "podIPs", wrapped: true };

/// Pair of fields with one and with all addresses, which are kept in step.
pub(super) struct Names {
    one: &'static str,
    all: &'static str,
    /// Each of all is an object with an `ip`.
    wrapped: bool,
}

impl Names {
    /// Makes both say the same. The name for the first counts where they differ: old clients know no other.
    pub(super) fn sync(&self, holder: &mut Value) {
        let Some(holder) = holder.as_object_mut() else { return };
        let one = holder.get(self.one).and_then(Value::as_str).unwrap_or_default().to_owned();
        let first = holder.get(self.all).and_then(|all| all.get(0)).cloned().unwrap_or_default();
        let first = if self.wrapped { first["ip"].clone() } else { first };
        match (&*one, first.as_str().unwrap_or_default()) {
            ("", "") => {}
            ("", first) => drop(holder.insert(self.one.to_owned(), json!(first))),
            (one, first) if one == first => {}
            (one, _) => {
                let only = if self.wrapped { json!([{"ip": one}]) } else { json!([one]) };
                holder.insert(self.all.to_owned(), only);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_name_will_do() {
        let two = json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]);
        for (sent, stored) in [
            (json!({"podIP": "10.0.0.1"}), json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]})),
            (json!({"podIPs": two}), json!({"podIP": "10.0.0.1", "podIPs": two})),
            (json!({"podIP": "10.0.0.1", "podIPs": two}), json!({"podIP": "10.0.0.1", "podIPs": two})),
            (json!({"podIP": "10.0.0.2", "podIPs": two}), json!({"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]})),
            (json!({}), json!({})),
        ] {
            let mut status = sent.clone();
            POD.sync(&mut status);
            assert_eq!(status, stored, "{sent}");
        }
        let mut spec = json!({"podCIDRs": ["10.1.0.0/24"]});
        RANGES.sync(&mut spec);
        assert_eq!(spec, json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}));
    }
}
