//! Trust anchors of projected volumes, out of the cluster's bundles. Pure; upstream's `pkg/kubelet/clustertrustbundle`.

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use shared::cert;
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

/// The order of anchors: another one in every kubelet, so that nobody relies on it, and the same for every look.
static ORDER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Reasons why a projection has no anchors, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// No bundle of this name.
    #[error("while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {0:?} not found")]
    NotFound(String),
    /// The signer has no bundle that is selected.
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoMatch,
    /// The projection names nothing.
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    Unnamed,
}

/// Reports whether labels are selected. Without a selector nothing is, by an empty one everything.
fn is_selected(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    let Some(selector) = selector else { return false };
    let has = |key: &String, values: &[String]| labels.get(key).is_some_and(|value| values.contains(value));
    let mut pairs = selector.match_labels.iter().flatten();
    pairs.all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().flatten().all(|rule| {
            let values = rule.values.as_deref().unwrap_or_default();
            match rule.operator.as_str() {
                "In" => has(&rule.key, values),
                "NotIn" => !has(&rule.key, values),
                "Exists" => labels.contains_key(&rule.key),
                "DoesNotExist" => !labels.contains_key(&rule.key),
                _ => false,
            }
        })
}

/// Anchors of the bundle that a projection names, or of those of a signer that it selects: each once, in PEM.
///
/// # Errors
/// There is no such bundle, and the projection is not optional; upstream's texts.
pub(super) fn anchors(
    bundles: &[ClusterTrustBundle],
    source: &ClusterTrustBundleProjection,
) -> Result<Vec<u8>, TrustError> {
    let is_wanted = |bundle: &&ClusterTrustBundle| match (&source.name, &source.signer_name) {
        (Some(_), _) => bundle.metadata.name == source.name,
        (None, Some(signer)) => {
            let none = BTreeMap::new();
            let labels = bundle.metadata.labels.as_ref().unwrap_or(&none);
            bundle.spec.signer_name.as_ref() == Some(signer) && is_selected(source.label_selector.as_ref(), labels)
        }
        (None, None) => false,
    };
    let wanted: Vec<&ClusterTrustBundle> = bundles.iter().filter(is_wanted).collect();
    let missing = match (&source.name, &source.signer_name) {
        (Some(name), _) => TrustError::NotFound(name.clone()),
        (None, Some(_)) => TrustError::NoMatch,
        (None, None) => return Err(TrustError::Unnamed),
    };
    if wanted.is_empty() {
        return if source.optional == Some(true) { Ok(Vec::new()) } else { Err(missing) };
    }
    let texts = wanted.iter().map(|bundle| bundle.spec.trust_bundle.as_bytes());
    let mut anchors: Vec<_> = texts.filter_map(|text| cert::certificates(text).ok()).flatten().collect();
    anchors.sort_by_cached_key(|anchor| {
        let bytes: &[u8] = anchor.as_ref();
        (ORDER.hash_one(bytes), bytes.to_vec())
    });
    anchors.dedup();
    Ok(cert::to_pem(&anchors).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The text of an anchor; its content is nobody's business here.
    fn pem(content: &str) -> String {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(content);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    }

    fn bundle(name: &str, signer: Option<&str>, labels: Value, anchors: &[&str]) -> ClusterTrustBundle {
        let text: String = anchors.iter().map(|anchor| format!("a comment\n{}", pem(anchor))).collect();
        let spec = json!({"signerName": signer, "trustBundle": text});
        let bundle = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        serde_json::from_value(bundle).expect("a bundle")
    }

    #[test]
    fn anchors_are_chosen_by_name_or_by_signer_and_labels() {
        let bundles = [
            bundle("own", None, json!({}), &["a", "b", "a"]),
            bundle("s:1", Some("s"), json!({"live": "1"}), &["b", "c"]),
            bundle("s:2", Some("s"), json!({}), &["c"]),
            bundle("t:1", Some("t"), json!({"live": "1"}), &["d"]),
        ];
        let found = |source: Value| {
            let mut source = source;
            source["path"] = "p".into();
            let text =
                anchors(&bundles, &serde_json::from_value(source).expect("a source")).map_err(|e| e.to_string())?;
            let text = String::from_utf8(text).expect("text");
            let mut found: Vec<&str> =
                ["a", "b", "c", "d"].into_iter().filter(|name| text.contains(&pem(name))).collect();
            found.push(if text.matches("BEGIN").count() == found.len() { "once" } else { "more than once" });
            Ok::<_, String>(found.join(" "))
        };
        let live = json!({"matchLabels": {"live": "1"}});
        let rule = |operator: &str| json!({"matchExpressions": [{"key": "live", "operator": operator}]});
        let zero = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        let neither = "ClusterTrustBundle projection requires either name or signerName to be set";
        let missing = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"x\" not found";
        for (source, expected) in [
            (json!({"name": "own"}), Ok("a b once")),
            (json!({"signerName": "s", "labelSelector": {}}), Ok("b c once")),
            (json!({"signerName": "s", "labelSelector": live}), Ok("b c once")),
            (json!({"signerName": "s", "labelSelector": rule("DoesNotExist")}), Ok("c once")),
            (json!({"signerName": "s"}), Err(zero)),
            (json!({"signerName": "u", "labelSelector": {}, "optional": true}), Ok("once")),
            (json!({"name": "x"}), Err(missing)),
            (json!({"name": "x", "optional": true}), Ok("once")),
            (json!({}), Err(neither)),
        ] {
            assert_eq!(found(source.clone()), expected.map(str::to_owned).map_err(str::to_owned), "{source}");
        }
        let source = serde_json::from_value(json!({"name": "own", "path": "p"})).expect("a source");
        assert_eq!(anchors(&bundles, &source), anchors(&bundles, &source), "the order stays");
    }
}
