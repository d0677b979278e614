//! The files that the command makes, read by OpenSSL.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command in a folder: certificates in `pki/`, kubeconfigs beside it.
fn ironclad(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ironclad"))
        .current_dir(folder)
        .arg("pki")
        .args(arguments)
        .args(["--cert-dir=pki", "--kubeconfig-dir=."])
        .output()
        .expect("ironclad runs")
}

fn init(folder: &Path, more: &[&str]) -> Output {
    let common = ["init", "--node-name=cp-1", "--apiserver-advertise-address=10.0.0.1"];
    ironclad(folder, &[&common, more].concat())
}

fn must(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn refused(output: Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("text")
}

fn openssl(folder: &Path, arguments: &[&str]) -> String {
    must(Command::new("openssl").current_dir(folder).args(arguments).output().expect("openssl runs"))
}

fn everything(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for below in ["", "pki", "pki/etcd"] {
        for entry in folder.join(below).read_dir().expect("a folder").flatten().filter(|entry| entry.path().is_file()) {
            files.push((entry.path().display().to_string(), std::fs::read(entry.path()).expect("a file")));
        }
    }
    files.sort();
    files
}

#[test]
fn made_certificates_verify_and_name_what_they_should() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    must(init(
        folder,
        &[
            "--encryption-algorithm=ECDSA-P256",
            "--control-plane-endpoint=api.example:8443",
            "--apiserver-cert-extra-sans=203.0.113.7,extra.example",
            "--service-cidr=10.96.0.0/12,fd00:96::/112",
        ],
    ));
    for (ca, purpose, certificate) in [
        ("pki/ca.crt", "sslserver", "pki/apiserver.crt"),
        ("pki/ca.crt", "sslclient", "pki/apiserver-kubelet-client.crt"),
        ("pki/front-proxy-ca.crt", "sslclient", "pki/front-proxy-client.crt"),
        ("pki/etcd/ca.crt", "sslclient", "pki/apiserver-etcd-client.crt"),
        ("pki/etcd/ca.crt", "sslclient", "pki/etcd/healthcheck-client.crt"),
        ("pki/etcd/ca.crt", "sslserver", "pki/etcd/server.crt"),
        ("pki/etcd/ca.crt", "sslclient", "pki/etcd/peer.crt"),
    ] {
        openssl(folder, &["verify", "-x509_strict", "-CAfile", ca, "-purpose", purpose, certificate]);
    }
    let names = openssl(folder, &["x509", "-in", "pki/apiserver.crt", "-noout", "-ext", "subjectAltName"]);
    for name in [
        "DNS:cp-1",
        "DNS:kubernetes.default.svc.cluster.local",
        "DNS:api.example",
        "DNS:extra.example",
        "IP Address:10.96.0.1",
        "IP Address:FD00:96:0:0:0:0:0:1",
        "IP Address:10.0.0.1",
        "IP Address:203.0.113.7",
    ] {
        assert!(names.contains(name), "{name} in {names}");
    }
    let subject = openssl(folder, &["x509", "-in", "pki/apiserver-kubelet-client.crt", "-noout", "-subject"]);
    assert_eq!(subject.trim(), "subject=O = kubeadm:cluster-admins, CN = kube-apiserver-kubelet-client");
}

/// Keys are RSA unless another kind is asked for; one is enough here, for this build makes them slowly.
#[test]
fn keys_have_the_forms_that_kubeadm_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    must(init(folder, &["--encryption-algorithm=ECDSA-P384"]));
    must(ironclad(folder, &["certificate", "--common-name=rsa", "--out=pki/rsa"]));
    for (key, form) in [
        ("pki/ca.key", "-----BEGIN EC PRIVATE KEY-----\n"),
        ("pki/sa.key", "-----BEGIN EC PRIVATE KEY-----\n"),
        ("pki/rsa.key", "-----BEGIN RSA PRIVATE KEY-----\n"),
    ] {
        openssl(folder, &["pkey", "-in", key, "-check", "-noout"]);
        let text = std::fs::read_to_string(folder.join(key)).expect("a key");
        assert!(text.starts_with(form), "{key}");
    }
    openssl(folder, &["verify", "-CAfile", "pki/ca.crt", "pki/rsa.crt"]);
    let length = openssl(folder, &["rsa", "-in", "pki/rsa.key", "-noout", "-text"]);
    assert!(length.contains("2048 bit"), "{length}");
    let public = openssl(folder, &["pkey", "-in", "pki/sa.key", "-pubout"]);
    assert_eq!(public, std::fs::read_to_string(folder.join("pki/sa.pub")).expect("sa.pub"));
}

#[test]
fn secrets_are_their_owners_alone_and_a_second_run_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    must(init(folder, &["--encryption-algorithm=ECDSA-P256"]));
    let before = everything(folder);
    assert_eq!(before.len(), 3 * 2 + 7 * 2 + 2 + 6, "authorities, certificates, keys of tokens, kubeconfigs");
    for (path, _) in &before {
        let mode = std::fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        let public = path.ends_with(".crt") || path.ends_with(".pub");
        assert_eq!(mode, if public { 0o644 } else { 0o600 }, "{path}");
    }
    must(init(folder, &["--encryption-algorithm=ECDSA-P256"]));
    assert_eq!(everything(folder), before);
}

#[test]
fn authorities_of_others_are_kept_in_every_form_of_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    std::fs::create_dir(folder.join("pki")).expect("a folder");
    let subject = ["-subj", "/CN=corporate", "-days", "100", "-x509", "-nodes"];
    let rsa = ["req", "-newkey", "rsa:2048", "-keyout", "pki/ca.key", "-out", "pki/ca.crt"];
    openssl(folder, &[&rsa, &subject[..]].concat());
    openssl(folder, &["ecparam", "-name", "secp384r1", "-genkey", "-out", "pki/front-proxy-ca.key"]);
    let curve = ["req", "-new", "-key", "pki/front-proxy-ca.key", "-out", "pki/front-proxy-ca.crt"];
    openssl(folder, &[&curve, &subject[..]].concat());
    must(init(folder, &["--encryption-algorithm=ECDSA-P256"]));
    openssl(folder, &["verify", "-CAfile", "pki/ca.crt", "pki/apiserver.crt"]);
    openssl(folder, &["verify", "-CAfile", "pki/front-proxy-ca.crt", "pki/front-proxy-client.crt"]);
    let end = |file: &str| openssl(folder, &["x509", "-in", file, "-noout", "-enddate"]);
    assert_eq!(end("pki/apiserver.crt"), end("pki/ca.crt"), "a certificate lasts no longer than its authority");
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let ecdsa = "--encryption-algorithm=ECDSA-P256";
    must(init(folder, &[ecdsa, "--apiserver-cert-extra-sans=10.0.0.9"]));
    let other = tempfile::tempdir().expect("a folder");
    must(init(other.path(), &[ecdsa]));
    for (file, complaint) in [
        ("pki/apiserver.crt", "not signed by pki/ca.crt"),
        ("pki/apiserver.key", "the key beside it is another's"),
        ("pki/ca.key", "pki/ca.key is not the key of pki/ca.crt"),
        ("scheduler.conf", "it trusts another certificate authority"),
    ] {
        let ours = std::fs::read(folder.join(file)).expect("a file");
        std::fs::copy(other.path().join(file), folder.join(file)).expect("a copy");
        let said = refused(init(folder, &[ecdsa]));
        assert!(said.contains(complaint), "{file}: {said}");
        std::fs::write(folder.join(file), ours).expect("a file");
    }
    let said = refused(init(folder, &[ecdsa, "--control-plane-endpoint=10.0.0.9"]));
    assert!(said.contains("it is for the server"), "{said}");
    must(init(folder, &[ecdsa]));
}

#[test]
fn renewal_keeps_names_and_gives_new_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    must(init(folder, &["--encryption-algorithm=ECDSA-P256", "--validity=47h"]));
    let said = must(ironclad(folder, &["check-expiration"]));
    assert!(said.contains("   1d   "), "{said}");
    let names = |file: &str| {
        openssl(folder, &["x509", "-in", file, "-noout", "-subject", "-ext", "subjectAltName,extendedKeyUsage"])
    };
    let (before, key) = (names("pki/etcd/peer.crt"), std::fs::read(folder.join("pki/etcd/peer.key")).expect("a key"));
    let ca = std::fs::read(folder.join("pki/etcd/ca.crt")).expect("an authority");
    let code = |within: &str| ironclad(folder, &["check-expiration", within]).status.code();
    assert_eq!(code("--within=720h"), Some(2));

    let said = must(ironclad(folder, &["renew", "all"]));
    assert!(said.contains("etcd-peer renewed\n") && said.contains("admin.conf renewed\n"), "{said}");
    assert_eq!(names("pki/etcd/peer.crt"), before);
    assert_ne!(std::fs::read(folder.join("pki/etcd/peer.key")).expect("a key"), key);
    assert_eq!(std::fs::read(folder.join("pki/etcd/ca.crt")).expect("an authority"), ca);
    openssl(folder, &["verify", "-CAfile", "pki/etcd/ca.crt", "-purpose", "sslserver", "pki/etcd/peer.crt"]);
    assert_eq!(code("--within=720h"), Some(0));
    let said = must(ironclad(folder, &["check-expiration"]));
    assert!(said.contains("364d"), "{said}");
    must(init(folder, &["--encryption-algorithm=ECDSA-P256"]));
}

#[test]
fn external_authorities_sign_nothing_and_are_told_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    must(init(folder, &["--encryption-algorithm=ECDSA-P256"]));
    std::fs::remove_file(folder.join("pki/ca.key")).expect("a key");
    must(init(folder, &["--encryption-algorithm=ECDSA-P256"]));
    let said = must(ironclad(folder, &["renew", "apiserver", "etcd-server"]));
    assert!(said.contains("apiserver not renewed") && said.contains("etcd-server renewed"), "{said}");
    let report = must(ironclad(folder, &["check-expiration", "-o", "json"]));
    let compact: String = report.split_whitespace().collect();
    assert!(compact.contains(r#""externallyManaged":true"#) && compact.contains(r#""externallyManaged":false"#));
    std::fs::remove_file(folder.join("pki/apiserver.crt")).expect("a certificate");
    let said = refused(init(folder, &["--encryption-algorithm=ECDSA-P256"]));
    assert!(said.contains("pki/ca.crt has no key here"), "{said}");
    let report = must(ironclad(folder, &["check-expiration"]));
    assert!(report.contains("!MISSING! apiserver\n"), "{report}");
}

#[test]
fn other_users_and_servers_get_certificates_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    must(init(folder, &["--encryption-algorithm=ECDSA-P256"]));
    let kubeconfig = ["kubeconfig", "--user=system:node:w1", "--group=system:nodes", "--server=https://10.0.0.1:6443"];
    let more = ["--out=w1/kubelet.conf", "--encryption-algorithm=ECDSA-P256"];
    must(ironclad(folder, &[&kubeconfig[..], &more].concat()));
    let text = std::fs::read_to_string(folder.join("w1/kubelet.conf")).expect("a kubeconfig");
    assert!(text.contains("current-context: system:node:w1@kubernetes\n"), "{text}");
    let certificate = ["certificate", "--common-name=system:node:w1", "--san=w1,10.0.0.2", "--out=w1/kubelet"];
    must(ironclad(folder, &[&certificate[..], &more[1..]].concat()));
    openssl(folder, &["verify", "-CAfile", "pki/ca.crt", "-purpose", "sslserver", "w1/kubelet.crt"]);
}

/// Refused by `kubeadm init`, too: clients would find out that the certificate has not their server's name.
#[test]
fn certificate_without_a_name_that_is_asked_for_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let ecdsa = "--encryption-algorithm=ECDSA-P256";
    must(init(folder, &[ecdsa, "--apiserver-cert-extra-sans=*.example,203.0.113.7"]));
    let before = everything(folder);
    must(init(folder, &[ecdsa]));
    must(init(folder, &[ecdsa, "--apiserver-cert-extra-sans=api.example"]));
    let said = refused(init(folder, &[ecdsa, "--apiserver-cert-extra-sans=api.example,203.0.113.8"]));
    assert!(said.contains("pki/apiserver.crt: is valid for cp-1, "), "{said}");
    assert!(said.contains(", not for 203.0.113.8; remove the certificate and its key"), "{said}");
    assert_eq!(everything(folder), before, "nothing was changed");
}
