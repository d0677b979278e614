//! Validation of command lines before anything starts. Answers for `Validate` of upstream's options.
//!
//! All that is wrong is told at once, in upstream's words and order.

use std::collections::BTreeMap;

use shared::flags::FlagSet;
use shared::leader;
use shared::status::field::aggregate;
use shared::status::go_quote;

use crate::engine::selection::Selection;

/// (flag, most)
const SLICES: [(&str, i64); 4] = [
    ("concurrent-service-endpoint-syncs", 50),
    ("max-endpoints-per-slice", 1000),
    ("mirroring-concurrent-service-endpoint-syncs", 50),
    ("mirroring-max-endpoints-per-subset", 1000),
];
/// Of these there is no upper bound.
const SYNCS: [&str; 5] = [
    "concurrent-ephemeralvolume-syncs",
    "concurrent-horizontal-pod-autoscaler-syncs",
    "concurrent-job-syncs",
    "concurrent-cron-job-syncs",
    "concurrent-statefulset-syncs",
];
/// Signers with a key pair of their own: how messages call them, and the beginning of their flags.
const SIGNERS: [(&str, &str); 4] = [
    ("cluster-signing-kubelet-serving", "cluster-signing-kubelet-serving"),
    ("cluster-signing-kube-apiserver-client", "cluster-signing-kubelet-client"),
    ("cluster-signing-kube-apiserver", "cluster-signing-kube-apiserver-client"),
    ("cluster-signing-legacy-unknown", "cluster-signing-legacy-unknown"),
];

/// Refuse what cannot be run with. `known` are the names of controllers.
///
/// # Errors
/// Everything that is wrong.
pub fn validate(flags: &FlagSet, known: &BTreeMap<&str, &str>) -> anyhow::Result<()> {
    let mut errors = leader_election(flags);
    let named = flags.list("controllers");
    let unknown = Selection::unknown(&named, known);
    errors.extend(unknown.iter().map(|name| format!("{} is not in the list of known controllers", go_quote(name))));
    errors.extend(signing(flags));
    errors.extend(SLICES.iter().filter_map(|(name, most)| within(name, flags.integer(name), *most)));
    errors.extend(SYNCS.iter().filter_map(|name| {
        let n = flags.integer(name);
        (n < 1).then(|| format!("{name} must be greater than 0, but got {n}"))
    }));
    let ranges = flags.string("service-cluster-ip-range");
    if ranges.split(',').count() > 2 {
        errors.push("--service-cluster-ip-range can not contain more than two entries".to_owned());
    }
    let name = "concurrent-device-taint-eviction-syncs";
    if flags.integer(name) < 1 {
        errors.push(format!("{name} must be greater than zero, got {}", flags.integer(name)));
    }
    if errors.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("{}", aggregate(&errors))) }
}

fn within(name: &str, n: i64, most: i64) -> Option<String> {
    match n {
        ..1 => Some(format!("{name} must not be less than 1, but got {n}")),
        n if n > most => Some(format!("{name} must not be more than {most}, but got {n}")),
        _ => None,
    }
}

fn leader_election(flags: &FlagSet) -> Vec<String> {
    if !flags.boolean("leader-elect") {
        return Vec::new();
    }
    let [lease, renew, retry] = ["lease-duration", "renew-deadline", "retry-period"]
        .map(|name| flags.duration(&format!("leader-elect-{name}")));
    let mut errors = Vec::new();
    if flags.string("leader-elect-resource-lock") != "leases" {
        errors.push(r#"resourceLock value must be "leases""#.to_owned());
    }
    errors.extend(leader::refused(lease, renew, retry).map(str::to_owned));
    errors
}

fn signing(flags: &FlagSet) -> Vec<String> {
    let given = |prefix: &str| ["cert", "key"].map(|which| !flags.string(&format!("{prefix}-{which}-file")).is_empty());
    let mut errors: Vec<String> = SIGNERS
        .iter()
        .filter_map(|(name, prefix)| {
            let why = match given(prefix) {
                [false, true] => "cannot specify key without cert",
                [true, false] => "cannot specify cert without key",
                _ => return None,
            };
            Some(format!("{}: {why}", go_quote(name)))
        })
        .collect();
    let own = SIGNERS.iter().any(|(_, prefix)| given(prefix).contains(&true));
    if own && given("cluster-signing").contains(&true) {
        let text = "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time";
        errors.push(text.to_owned());
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::TABLE;
    use crate::engine::registry::known;

    fn told(args: &[&str]) -> String {
        let flags = FlagSet::of("kube-controller-manager", args).expect("flags");
        validate(&flags, &known(TABLE)).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn what_is_refused() {
        for (args, want) in [
            (&[][..], ""),
            (&["--controllers=*,-job,podgc,bootstrap-signer-controller"], ""),
            (
                &["--controllers=*,nope,-neither"],
                r#"["nope" is not in the list of known controllers, "neither" is not in the list of known controllers]"#,
            ),
            (
                &["--concurrent-service-endpoint-syncs=0"],
                "concurrent-service-endpoint-syncs must not be less than 1, but got 0",
            ),
            (
                &["--concurrent-service-endpoint-syncs=51"],
                "concurrent-service-endpoint-syncs must not be more than 50, but got 51",
            ),
            (&["--max-endpoints-per-slice=1001"], "max-endpoints-per-slice must not be more than 1000, but got 1001"),
            (
                &["--mirroring-concurrent-service-endpoint-syncs=51"],
                "mirroring-concurrent-service-endpoint-syncs must not be more than 50, but got 51",
            ),
            (
                &["--mirroring-max-endpoints-per-subset=0"],
                "mirroring-max-endpoints-per-subset must not be less than 1, but got 0",
            ),
            (&["--concurrent-job-syncs=0"], "concurrent-job-syncs must be greater than 0, but got 0"),
            (&["--concurrent-statefulset-syncs=-1"], "concurrent-statefulset-syncs must be greater than 0, but got -1"),
            (
                &["--concurrent-device-taint-eviction-syncs=0"],
                "concurrent-device-taint-eviction-syncs must be greater than zero, got 0",
            ),
            (
                &["--service-cluster-ip-range=10.0.0.0/16,244.0.0.0/16,3000::/108"],
                "--service-cluster-ip-range can not contain more than two entries",
            ),
            (&["--leader-elect-resource-lock=endpoints"], r#"resourceLock value must be "leases""#),
            (&["--leader-elect-resource-lock=endpoints", "--leader-elect=false"], ""),
            (&["--leader-elect-lease-duration=10s"], "leaseDuration must be greater than renewDeadline"),
            (&["--leader-elect-retry-period=9s"], "renewDeadline must be greater than retryPeriod*JitterFactor"),
            (
                &["--cluster-signing-kubelet-client-key-file=k"],
                r#""cluster-signing-kube-apiserver-client": cannot specify key without cert"#,
            ),
            (
                &["--cluster-signing-legacy-unknown-cert-file=c"],
                r#""cluster-signing-legacy-unknown": cannot specify cert without key"#,
            ),
            (&["--cluster-signing-cert-file=c", "--cluster-signing-key-file=k"], ""),
            (
                &[
                    "--cluster-signing-cert-file=c",
                    "--cluster-signing-key-file=k",
                    "--cluster-signing-kubelet-serving-cert-file=c",
                    "--cluster-signing-kubelet-serving-key-file=k",
                ],
                "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time",
            ),
        ] {
            assert_eq!(told(args), want, "{args:?}");
        }
    }
}
