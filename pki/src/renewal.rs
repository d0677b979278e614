//! Renewal of certificates: a new key and a new time, everything else as it was. Answers for `kubeadm certs renew`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::authority::{Authority, Issued, Leaf};
use crate::cluster::{CERTIFICATES, KUBECONFIGS, authority_row};
use crate::files::{PUBLIC, SECRET, extended, read, write};
use crate::keys::PrivateKey;
use crate::kubeconfig;

/// The end of an attempt to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// A new certificate and key were written.
    Renewed,
    /// There is no such file.
    Missing,
    /// The authority's key is elsewhere.
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
pub fn renew(certificates: &Path, kubeconfigs: &Path, name: &str, validity: Duration) -> Result<Renewal> {
    if let Some(row) = CERTIFICATES.iter().find(|row| row.name == name) {
        return files(certificates, row.file, row.authority, validity);
    }
    match KUBECONFIGS.iter().find(|row| row.file == name) {
        Some(row) => inside(certificates, &kubeconfigs.join(row.file), validity),
        None => bail!("no certificate {name}; there are: {}", names().collect::<Vec<_>>().join(" ")),
    }
}

fn files(certificates: &Path, file: &str, authority: &str, validity: Duration) -> Result<Renewal> {
    let stem = certificates.join(file);
    let (certificate, key) = (extended(&stem, "crt"), extended(&stem, "key"));
    if !certificate.exists() {
        return Ok(Renewal::Missing);
    }
    let ca = Authority::open(&certificates.join(authority_row(authority)?.file))?;
    if ca.is_external() {
        return Ok(Renewal::External);
    }
    let old = Issued { certificate: read(&certificate)?, key: read(&key)? };
    let new = again(&ca, &old, validity).with_context(|| certificate.display().to_string())?;
    write(&key, &new.key, SECRET)?;
    write(&certificate, &new.certificate, PUBLIC)?;
    Ok(Renewal::Renewed)
}

fn inside(certificates: &Path, path: &Path, validity: Duration) -> Result<Renewal> {
    if !path.exists() {
        return Ok(Renewal::Missing);
    }
    let ca = Authority::open(&certificates.join("ca"))?;
    if ca.is_external() {
        return Ok(Renewal::External);
    }
    let mut config = kubeconfig::read(path)?;
    let Some(old) = kubeconfig::embedded(&config).with_context(|| path.display().to_string())? else {
        return Ok(Renewal::InFiles);
    };
    let new = again(&ca, &old, validity).with_context(|| path.display().to_string())?;
    kubeconfig::replace(&mut config, &new);
    kubeconfig::write(path, &config)?;
    Ok(Renewal::Renewed)
}

fn again(ca: &Authority, old: &Issued, validity: Duration) -> Result<Issued> {
    ca.issue(Leaf::of_pem(&old.certificate)?.params()?, PrivateKey::from_pem(&old.key)?.algorithm(), validity)
}
