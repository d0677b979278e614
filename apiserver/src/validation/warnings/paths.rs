//! Files of a volume that lie in each other's way.

use proto::Value;
use shared::status::go_quote;

use crate::rules::options::Warnings;
use crate::rules::tree::{get, has, list, text};

/// A path in a volume, and which of several sources it is from.
struct VolumePath {
    path: String,
    source: String,
}

/// Compares the files of a volume that is put together of keys or of other sources.
pub(super) fn overlapping(volume: &Value, out: &mut Warnings) {
    let volume_name = go_quote(text(volume, "name"));
    if has(volume, "projected") {
        let heading = format!("volume {volume_name} (Projected)");
        let mut before = Vec::new();
        for source in list(get(volume, "projected"), "sources") {
            let Some(files) = files(source) else {
                out.push(format!("{heading} has no sources provided"));
                continue;
            };
            let shown = |file: &VolumePath| format!("{} ({})", go_quote(&file.path), file.source);
            compare(files, &mut before, &heading, shown, out);
        }
    } else if let Some(files) = files(volume).filter(|files| !files.is_empty()) {
        let heading = format!("volume {volume_name} ({})", files[0].source);
        compare(files, &mut Vec::new(), &heading, |file| go_quote(&file.path), out);
    }
}

fn compare(
    files: Vec<VolumePath>,
    before: &mut Vec<VolumePath>,
    heading: &str,
    shown: impl Fn(&VolumePath) -> String,
    out: &mut Warnings,
) {
    for mut file in files {
        file.path.truncate(file.path.trim_end_matches('/').len());
        for other in before.iter().filter(|other| collide(&file.path, &other.path)) {
            out.push(format!("{heading}: overlapping paths: {} with {}", shown(&file), shown(other)));
        }
        before.push(file);
    }
}

/// True if both are the same file, or one would have to be a directory for the other.
fn collide(a: &str, b: &str) -> bool {
    let within = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    !a.is_empty() && !b.is_empty() && (a == b || within(a, b) || within(b, a))
}

/// The files that a source names; `None` for one that is none of those that name files.
fn files(source: &Value) -> Option<Vec<VolumePath>> {
    let items = |of: &Value, source: String| {
        let paths = list(of, "items").iter().map(|item| text(item, "path"));
        paths.map(|path| VolumePath { path: path.to_owned(), source: source.clone() }).collect()
    };
    let one = |path: &str, source: String| vec![VolumePath { path: path.to_owned(), source }];
    let first = |of: &Value, names: [&str; 2]| {
        let name = names.into_iter().map(|name| text(of, name)).find(|name| !name.is_empty());
        go_quote(name.unwrap_or_default())
    };
    if has(source, "configMap") {
        let map = get(source, "configMap");
        Some(items(map, format!("ConfigMap {}", go_quote(text(map, "name")))))
    } else if has(source, "secret") {
        let secret = get(source, "secret");
        Some(items(secret, format!("Secret {}", first(secret, ["secretName", "name"]))))
    } else if has(source, "downwardAPI") {
        Some(items(get(source, "downwardAPI"), "DownwardAPI".to_owned()))
    } else if has(source, "serviceAccountToken") {
        Some(one(text(get(source, "serviceAccountToken"), "path"), "ServiceAccountToken".to_owned()))
    } else if has(source, "clusterTrustBundle") {
        let bundle = get(source, "clusterTrustBundle");
        Some(one(text(bundle, "path"), format!("ClusterTrustBundle {}", first(bundle, ["name", "signerName"]))))
    } else if has(source, "podCertificate") {
        let certificate = get(source, "podCertificate");
        let kinds =
            [("certificateChainPath", "chain"), ("keyPath", "key"), ("credentialBundlePath", "credential bundle")];
        let named = kinds.map(|(field, what)| one(text(certificate, field), format!("PodCertificate {what}")));
        Some(named.into_iter().flatten().collect())
    } else {
        None
    }
}
