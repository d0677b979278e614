//! Renewal of certificates: a new key and a new time, everything else as it was. Answers for `kubeadm certs renew`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::authority::{Authority, Issued, Leaf, parse};
use crate::cluster::{CERTIFICATES, KUBECONFIGS, authority_row};
use crate::files::{PUBLIC, SECRET, extended, read, write};
use crate::keys::Key;
use crate::kubeconfig;

/// The end of an attempt to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has a new certificate and key.
    Renewed,
    /// It is not there.
    Missing,
    /// Its authority's key is elsewhere.
    External,
    /// The kubeconfig names files, which the kubelet renews by itself.
    InFiles,
}

/// Names of everything that can be renewed.
pub fn names() -> impl Iterator<Item = &'static str> {
    CERTIFICATES.iter().map(|row| row.name).chain(KUBECONFIGS.iter().map(|row| row.file))
}

/// Renews a certificate, or the one in a kubeconfig.
///
/// # Errors
/// When there is none of this name, or a file cannot be read or written.
pub fn renew(certificates: &Path, kubeconfigs: &Path, name: &str, validity: Duration) -> Result<Outcome> {
    if let Some(row) = CERTIFICATES.iter().find(|row| row.name == name) {
        return files(certificates, row.file, row.authority, validity);
    }
    match KUBECONFIGS.iter().find(|row| row.file == name) {
        Some(row) => inside(certificates, &kubeconfigs.join(row.file), validity),
        None => bail!("no certificate {name}; there are: {}", names().collect::<Vec<_>>().join(" ")),
    }
}

fn files(certificates: &Path, file: &str, authority: &str, validity: Duration) -> Result<Outcome> {
    let stem = certificates.join(file);
    let (certificate, key) = (extended(&stem, "crt"), extended(&stem, "key"));
    if !certificate.exists() {
        return Ok(Outcome::Missing);
    }
    let ca = Authority::open(&certificates.join(authority_row(authority)?.file))?;
    if ca.is_external() {
        return Ok(Outcome::External);
    }
    let old = Issued { certificate: read(&certificate)?, key: read(&key)? };
    let new = again(&ca, &old, validity).with_context(|| certificate.display().to_string())?;
    write(&key, &new.key, SECRET)?;
    write(&certificate, &new.certificate, PUBLIC)?;
    Ok(Outcome::Renewed)
}

fn inside(certificates: &Path, path: &Path, validity: Duration) -> Result<Outcome> {
    if !path.exists() {
        return Ok(Outcome::Missing);
    }
    let ca = Authority::open(&certificates.join("ca"))?;
    if ca.is_external() {
        return Ok(Outcome::External);
    }
    let mut config = kubeconfig::read(path)?;
    let Some(old) = kubeconfig::embedded(&config).with_context(|| path.display().to_string())? else {
        return Ok(Outcome::InFiles);
    };
    let new = again(&ca, &old, validity).with_context(|| path.display().to_string())?;
    kubeconfig::replace(&mut config, &new);
    kubeconfig::write(path, &config)?;
    Ok(Outcome::Renewed)
}

fn again(ca: &Authority, old: &Issued, validity: Duration) -> Result<Issued> {
    let parsed = parse(&old.certificate)?;
    let leaf = Leaf::of(&parsed.parse_x509()?)?;
    ca.issue(leaf.params()?, Key::from_pem(&old.key)?.algorithm(), validity)
}
