//! A list of everything that a release contains, as an SPDX 2.3 document: the crates of the binaries, the Go modules of
//! etcd, CoreDNS and konnectivity, and the Debian packages of the images.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Sources;
use crate::image::Architecture;

const LOCK: &str = include_str!("../../../Cargo.lock");
const MODULES: [(&str, &str); 3] = [
    ("etcd", include_str!("../../images/etcd/go.mod")),
    ("coredns", include_str!("../../images/coredns/go.mod")),
    ("konnectivity", include_str!("../../images/konnectivity/go.mod")),
];

/// A part: its name, version, and where it is from as a package URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BillItem {
    name: String,
    version: String,
    url: String,
    sum: Option<String>,
}

/// Writes the document, of a release for these processors, to `file`.
///
/// # Errors
/// When the list of Debian packages cannot be read or `file` not be written.
pub fn sbom(sources: &Sources, architectures: &[Architecture], file: &Path) -> Result<()> {
    let mut parts = crates(LOCK);
    parts.extend(MODULES.iter().flat_map(|(_, text)| modules(text)));
    for architecture in architectures {
        let list = sources.cache.join(format!("debian{}.packages", architecture.suffix()));
        let debian = fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        parts.extend(packages(&debian));
    }
    parts.sort();
    parts.dedup();
    let text = serde_json::to_vec_pretty(&document(sources, &parts))?;
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The crates of a `Cargo.lock`; those of the workspace have no source.
fn crates(lock: &str) -> Vec<BillItem> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.map(|text| text.trim_end_matches('"').to_owned())
    };
    let part = |block: &str| {
        value(block, "source")?;
        let (name, version) = (value(block, "name")?, value(block, "version")?);
        let url = format!("pkg:cargo/{name}@{version}");
        Some(BillItem { sum: value(block, "checksum"), name, version, url })
    };
    lock.split("[[package]]").skip(1).filter_map(part).collect()
}

/// The modules that a `go.mod` requires.
fn modules(text: &str) -> Vec<BillItem> {
    let part = |line: &str| {
        let line = line.trim().trim_start_matches("require ");
        let mut words = line.split_whitespace();
        let (name, version) = (words.next()?, words.next()?);
        let is_module = name.contains('.') && version.starts_with('v') && !line.contains("=>");
        let url = format!("pkg:golang/{name}@{version}");
        is_module.then(|| BillItem { name: name.into(), version: version.into(), url, sum: None })
    };
    text.lines().filter_map(part).collect()
}

/// The packages in a list of file names `name_version_architecture.deb`; a colon in a version is written `%3a` there.
fn packages(list: &str) -> Vec<BillItem> {
    let part = |line: &str| {
        let mut words = line.strip_suffix(".deb")?.split('_');
        let (name, version, arch) = (words.next()?, words.next()?.replace("%3a", ":"), words.next()?);
        let url = format!("pkg:deb/debian/{name}@{}?arch={arch}", version.replace('+', "%2B").replace(':', "%3A"));
        Some(BillItem { name: name.into(), version, url, sum: None })
    };
    list.lines().filter_map(part).collect()
}

fn document(sources: &Sources, parts: &[BillItem]) -> Value {
    let identity = &sources.identity;
    let product = "SPDXRef-ironclad";
    let mut packages = vec![json!({
        "SPDXID": product,
        "name": "ironclad",
        "versionInfo": identity.version,
        "downloadLocation": "https://github.com/ironclad-k8s/ironclad",
        "sourceInfo": format!("commit {}", identity.commit),
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION",
        "filesAnalyzed": false,
    })];
    let mut relationships = vec![
        json!({"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": product}),
    ];
    for part in parts {
        let id = format!("SPDXRef-{}", &format!("{:x}", Sha256::digest(part.url.as_bytes()))[..16]);
        let mut package = json!({
            "SPDXID": id,
            "name": part.name,
            "versionInfo": part.version,
            "downloadLocation": "NOASSERTION",
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION",
            "filesAnalyzed": false,
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": part.url,
            }],
        });
        if let Some(sum) = &part.sum {
            package["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": sum}]);
        }
        packages.push(package);
        relationships.push(json!({"spdxElementId": product, "relationshipType": "CONTAINS", "relatedSpdxElement": id}));
    }
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("ironclad-{}", identity.version),
        "documentNamespace": format!("https://github.com/ironclad-k8s/ironclad/spdx/{}-{}", identity.version, identity.commit),
        "creationInfo": {"created": identity.date, "creators": ["Tool: ironclad-release"]},
        "packages": packages,
        "relationships": relationships,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(parts: &[BillItem]) -> Vec<&str> {
        parts.iter().map(|part| part.url.as_str()).collect()
    }

    #[test]
    fn parts_are_named_by_where_they_are_from() {
        let lock = "[[package]]\nname = \"own\"\nversion = \"1.35.4\"\n\n[[package]]\nname = \"tar\"\nversion = \"0.4.4\"\n\
            source = \"registry+x\"\nchecksum = \"ab\"\n";
        let found = crates(lock);
        assert_eq!(urls(&found), ["pkg:cargo/tar@0.4.4"]);
        assert_eq!(found[0].sum.as_deref(), Some("ab"));
        let text = "module x\n\ngo 1.24.0\n\nrequire a.example/b/v3 v3.6.6\n\nrequire (\n\tc.example/d v0.1.0 // indirect\n)\n\
            replace c.example/d => c.example/d v0.2.0\n";
        assert_eq!(urls(&modules(text)), ["pkg:golang/a.example/b/v3@v3.6.6", "pkg:golang/c.example/d@v0.1.0"]);
        let list = "conntrack_1%3a1.4.7-1+b2_amd64.deb\nlock\n";
        assert_eq!(urls(&packages(list)), ["pkg:deb/debian/conntrack@1%3A1.4.7-1%2Bb2?arch=amd64"]);
        assert_eq!(packages(list)[0].version, "1:1.4.7-1+b2");
    }

    #[test]
    fn everything_that_is_locked_is_listed() {
        assert!(crates(LOCK).len() > 100);
        for (name, text) in MODULES {
            assert!(modules(text).len() > 20, "{name}");
        }
    }
}
