//! Credentials from a program (`exec` in a kubeconfig, client.authentication.k8s.io): it is told what for in
//! `KUBERNETES_EXEC_INFO` and prints an `ExecCredential`. What it gave is kept until that expires, or is refused.

use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client_metrics;
use super::credentials::bearer;
use crate::cert::{PemPair, ReloadingKey};

/// Asked again so long before a token expires, so that it does not do so on the way.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// A program and what it said last.
pub(super) struct Plugin {
    exec: ExecConfig,
    /// The client certificate, if it gave one at first.
    pair: Option<Arc<ReloadingKey>>,
    last: tokio::sync::Mutex<PluginOutput>,
}

/// Output of the plugin.
struct PluginOutput {
    header: Option<HeaderValue>,
    /// Until then it is of use.
    expires: Option<Timestamp>,
    /// From when to when its certificate is good, if it gave one.
    good: Option<(Timestamp, Timestamp)>,
    asked: Instant,
}

impl Plugin {
    /// Asks for the first time.
    ///
    /// # Errors
    /// The program cannot be run, fails, or prints something else than credentials.
    pub(super) fn start(exec: &ExecConfig) -> anyhow::Result<Self> {
        let (answer, pair) = ask(exec)?;
        let pair = pair.as_ref().map(ReloadingKey::from_pem).transpose()?.map(Arc::new);
        Ok(Self { exec: exec.clone(), pair, last: tokio::sync::Mutex::new(answer) })
    }

    /// The client certificate, which the program may exchange.
    #[must_use]
    pub(super) fn pair(&self) -> Option<Arc<ReloadingKey>> {
        self.pair.clone()
    }

    /// The header for a request now; none when the program only gave a certificate.
    ///
    /// # Errors
    /// Those of [`Plugin::start`], when it has to be asked again.
    pub(super) async fn header(&self) -> anyhow::Result<Option<HeaderValue>> {
        let mut last = self.last.lock().await;
        if last.expires.is_some_and(|at| Timestamp::now() + MARGIN >= at) {
            let exec = self.exec.clone();
            let (answer, pair) = tokio::task::spawn_blocking(move || ask(&exec)).await??;
            if let (Some(own), Some(pair)) = (&self.pair, &pair) {
                own.replace(pair)?;
            }
            if let Some((since, _)) = last.good.filter(|_| last.good != answer.good) {
                client_metrics::certificate_rotated(since, Timestamp::now());
            }
            *last = answer;
        }
        if let Some((_, end)) = last.good {
            client_metrics::certificate_ends(end, Timestamp::now());
        }
        Ok(last.header.clone())
    }

    /// The server did not believe what a request had that was made then: the program is asked again for the next one.
    pub(super) async fn refused(&self, then: Instant) {
        let mut last = self.last.lock().await;
        if last.asked < then {
            last.expires = Some(Timestamp::MIN);
        }
    }
}

fn ask(exec: &ExecConfig) -> anyhow::Result<(PluginOutput, Option<PemPair>)> {
    let name = exec.command.as_deref().context("exec plugin: command must be specified")?;
    let mut command = Command::new(name);
    command.args(exec.args.iter().flatten()).stdin(Stdio::null()).stderr(Stdio::inherit());
    for entry in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (entry.get("name"), entry.get("value")) {
            command.env(name, value);
        }
    }
    let output = command.env("KUBERNETES_EXEC_INFO", info(exec)?.to_string()).output();
    client_metrics::plugin_ran(&output.as_ref().map(|output| output.status).map_err(|e| e.kind().into()));
    let output = output.with_context(|| format!("exec: executable {name} failed"))?;
    ensure!(output.status.success(), "exec: executable {name} failed with {}", output.status);
    let said = proto::yaml::decode_any(&output.stdout).context("decoding stdout")?;
    read(&said)
}

/// From when to when a certificate in PEM is good.
fn good(pem: &str) -> Option<(Timestamp, Timestamp)> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let certificate = block.parse_x509().ok()?;
    let time = |at: x509_parser::time::ASN1Time| Timestamp::from_second(at.timestamp()).ok();
    let validity = certificate.validity();
    Some((time(validity.not_before)?, time(validity.not_after)?))
}

/// Components have no terminal.
fn info(exec: &ExecConfig) -> anyhow::Result<Value> {
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
        bail!("exec plugin cannot support interactive mode: standard input is not a terminal");
    }
    let version = exec.api_version.as_deref().unwrap_or("client.authentication.k8s.io/v1");
    let mut info = json!({"kind": "ExecCredential", "apiVersion": version, "spec": {"interactive": false}});
    if exec.provide_cluster_info {
        info["spec"]["cluster"] = serde_json::to_value(&exec.cluster)?;
    }
    Ok(info)
}

fn read(said: &Value) -> anyhow::Result<(PluginOutput, Option<PemPair>)> {
    ensure!(said["kind"] == "ExecCredential", "exec plugin didn't return an ExecCredential");
    let status = said["status"].as_object().context("exec plugin didn't return a status field")?;
    let text = |key: &str| status.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let pair = match (text("clientCertificateData"), text("clientKeyData")) {
        (Some(certificate), Some(key)) => Some(PemPair { certificate: certificate.to_owned(), key: key.to_owned() }),
        (None, None) => None,
        _ => bail!("exec plugin returned only certificate or key, not both"),
    };
    let header = text("token").map(bearer).transpose()?;
    ensure!(header.is_some() || pair.is_some(), "exec plugin didn't return a token or cert/key pair");
    let expires = text("expirationTimestamp").map(str::parse).transpose().context("expirationTimestamp")?;
    let good = pair.as_ref().and_then(|pair| good(&pair.certificate));
    Ok((PluginOutput { header, expires, good, asked: Instant::now() }, pair))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(status: Value) -> anyhow::Result<(PluginOutput, Option<PemPair>)> {
        read(&json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status}))
    }

    #[test]
    fn answers_that_are_of_use_and_not() {
        let (answer, pair) = says(json!({"token": "t"})).expect("a token");
        assert_eq!((answer.header.is_some(), answer.expires.is_some(), pair.is_some()), (true, false, false));
        let (_, pair) = says(json!({"clientCertificateData": "c", "clientKeyData": "k"})).expect("a pair");
        assert!(pair.is_some());
        for bad in [
            json!({}),
            json!({"clientKeyData": "k"}),
            json!({"token": "a\nb"}),
            json!({"token": "t", "expirationTimestamp": "soon"}),
            json!(7),
        ] {
            assert!(says(bad.clone()).is_err(), "{bad}");
        }
        assert!(read(&json!({"kind": "Pod"})).is_err());
    }

    #[tokio::test]
    async fn a_program_is_told_what_for_and_asked_again_when_its_token_is_about_to_expire() {
        let script = r#"n=$(cat "$COUNT" 2>/dev/null || echo 0); n=$((n+1)); echo $n > "$COUNT"
case "$KUBERNETES_EXEC_INFO" in *'"interactive":false'*) ;; *) exit 3;; esac
echo "{kind: ExecCredential, status: {token: t$n, expirationTimestamp: '2020-01-01T00:00:00Z'}}""#;
        let count = std::env::temp_dir().join(format!("plugin-{}", std::process::id()));
        let exec = serde_json::from_value(json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "env": [{"name": "COUNT", "value": count.to_string_lossy()}],
        }));
        let plugin = Plugin::start(&exec.expect("a plugin")).expect("credentials");
        let header = plugin.header().await.expect("credentials").expect("a token");
        assert_eq!(header, "Bearer t2");
        std::fs::remove_file(&count).expect("it counted");
    }

    /// A program that does not say how long its credentials last, and hands out a certificate.
    #[tokio::test]
    async fn a_program_is_asked_again_when_the_server_refuses_what_it_gave() {
        let folder = std::env::temp_dir().join(format!("plugin-pair-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let says = |name: &str| {
            let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a pair");
            let said = json!({"kind": "ExecCredential", "status": {"token": name,
                "clientCertificateData": made.cert.pem(), "clientKeyData": made.signing_key.serialize_pem()}});
            std::fs::write(folder.join("said"), said.to_string()).expect("written");
        };
        says("one");
        let exec = json!({"command": "cat", "args": [folder.join("said")]});
        let plugin = Plugin::start(&serde_json::from_value(exec).expect("a plugin")).expect("credentials");
        let shown = async || {
            let header = plugin.header().await.expect("credentials").expect("a token");
            (header, plugin.pair().expect("a pair").current().expect("it is there"))
        };
        let first = shown().await;
        says("two");
        let again = shown().await;
        assert!(first.0 == again.0 && Arc::ptr_eq(&first.1, &again.1), "nobody complains");
        plugin.refused(Instant::now()).await;
        let next = shown().await;
        assert_eq!(next.0, "Bearer two");
        assert!(first.1.cert != next.1.cert, "another certificate goes with it");
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_program_that_is_not_there_or_fails() {
        for (command, args) in [("/nowhere/login", vec![]), ("sh", vec!["-c", "exit 1"]), ("echo", vec!["{}"])] {
            let exec = serde_json::from_value(json!({"command": command, "args": args})).expect("a plugin");
            assert!(Plugin::start(&exec).is_err(), "{command}");
        }
    }
}
