//! Versions of the API that are served only where `--runtime-config` asks for them.

use std::collections::BTreeMap;

use proto::resources::{self, Resource};
use shared::flags::FeatureGates;

/// Resources that need a feature gate as well.
const GATES: &[(&str, &str, &str)] = &[
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicy"),
];

/// What was asked for, read strictly.
struct Asked<'c>(&'c BTreeMap<String, String>);

impl Asked<'_> {
    /// What a key says; one without a value says yes.
    fn says(&self, key: &str) -> Result<Option<bool>, String> {
        let Some(text) = self.0.get(key) else { return Ok(None) };
        match text.as_str() {
            "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Some(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Some(false)),
            _ => {
                Err(format!("invalid value of {key}: {text}, err: strconv.ParseBool: parsing {text:?}: invalid syntax"))
            }
        }
    }

    /// Whether a row is asked for; the most particular key counts.
    fn wants(&self, row: &Resource) -> Result<bool, String> {
        let version = row.api_version();
        let stage = if row.version.contains("alpha") { "api/alpha" } else { "api/beta" };
        for key in [format!("{version}/{}", row.plural), version, stage.to_owned(), "api/all".to_owned()] {
            if let Some(answer) = self.says(&key)? {
                return Ok(answer);
            }
        }
        Ok(false)
    }
}

/// The rows that `--runtime-config` turns on, in discovery order. Known versions cannot be turned off.
pub fn asked_for(config: &BTreeMap<String, String>, gates: &FeatureGates) -> Result<Vec<&'static Resource>, String> {
    let asked = Asked(config);
    for key in config.keys() {
        let off = asked.says(key)? == Some(false);
        if off && always_on(key) {
            tracing::warn!(key, "This part of --runtime-config has no effect yet");
        }
    }
    let mut rows = Vec::new();
    for row in resources::optional() {
        let gate = GATES.iter().find(|(g, p, _)| *g == row.group && *p == row.plural).map(|(_, _, gate)| *gate);
        if !asked.wants(row)? {
            continue;
        }
        match gate.filter(|gate| !gates.enabled(gate)) {
            Some(gate) => tracing::warn!(
                resource = %row.plural, version = %row.version, gate,
                "This resource is not served: its feature gate is not enabled"
            ),
            None => rows.push(row),
        }
    }
    Ok(rows)
}

/// Whether a key names what is served always.
fn always_on(key: &str) -> bool {
    matches!(key, "api/all" | "api/ga")
        || resources::all().iter().any(|r| {
            let version = r.api_version();
            key == version || key.strip_prefix(&version).is_some_and(|rest| rest.strip_prefix('/') == Some(&*r.plural))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::flags::FlagSet;

    fn served(flags: &[&str]) -> Result<Vec<String>, String> {
        let flags = FlagSet::of("kube-apiserver", flags).expect("flags");
        let rows = asked_for(&flags.map("runtime-config"), &flags.feature_gates())?;
        Ok(rows.iter().map(|r| format!("{}/{}", r.version, r.plural)).collect())
    }

    #[test]
    fn off_unless_version_and_gate_are_on() {
        const GATE: &str = "--feature-gates=MutatingAdmissionPolicy=true";
        const BETA: &str = "--runtime-config=admissionregistration.k8s.io/v1beta1=true";
        let beta = ["v1beta1/mutatingadmissionpolicies", "v1beta1/mutatingadmissionpolicybindings"];
        let alpha = ["v1alpha1/mutatingadmissionpolicies", "v1alpha1/mutatingadmissionpolicybindings"];
        let both: Vec<&str> = beta.into_iter().chain(alpha).collect();
        let table: &[(&[&str], &[&str])] = &[
            (&[], &[]),
            (&[GATE], &[]),
            (&[BETA], &[]),
            (&[GATE, BETA], &beta),
            (&[GATE, "--runtime-config=api/beta=true"], &beta),
            (&[GATE, "--runtime-config=api/alpha=true"], &alpha),
            (&[GATE, "--runtime-config=api/all=true"], &both),
            (&[GATE, "--runtime-config=api/all=true,admissionregistration.k8s.io/v1alpha1=false"], &beta),
            (
                &[GATE, "--runtime-config=admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies=true"],
                &beta[..1],
            ),
        ];
        for (flags, want) in table {
            assert_eq!(
                served(flags).as_deref(),
                Ok(want.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>().as_slice()),
                "{flags:?}"
            );
        }
        assert_eq!(
            served(&["--runtime-config=api/all=maybe"]),
            Err("invalid value of api/all: maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax".into())
        );
    }
}
