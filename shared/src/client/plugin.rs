//! Credentials from a program (`exec` in a kubeconfig, client.authentication.k8s.io): it is told what for in
//! `KUBERNETES_EXEC_INFO` and prints an `ExecCredential`. Its token is kept until it expires.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde_json::{Value, json};

use super::credentials::bearer;
use super::families;
use crate::cert::PemPair;

/// Asked again so long before a token expires, so that it does not do so on the way.
const MARGIN: SignedDuration = SignedDuration::from_secs(60);

/// A program and what it said last.
pub struct Plugin {
    exec: ExecConfig,
    /// When its certificate ends, if it gave one.
    ends: Option<Timestamp>,
    last: tokio::sync::Mutex<Answer>,
}

struct Answer {
    header: Option<HeaderValue>,
    expires: Option<Timestamp>,
}

impl Plugin {
    /// Asks for the first time; the certificate, where it gives one, serves as long as the client lives.
    ///
    /// # Errors
    /// The program cannot be run, fails, or prints something else than credentials.
    pub fn start(exec: &ExecConfig) -> anyhow::Result<(Self, Option<PemPair>)> {
        let (answer, pair) = ask(exec)?;
        let ends = pair.as_ref().and_then(|pair| end(&pair.certificate));
        Ok((Self { exec: exec.clone(), ends, last: tokio::sync::Mutex::new(answer) }, pair))
    }

    /// The header for a request now; none when the program only gave a certificate.
    ///
    /// # Errors
    /// Those of [`Plugin::start`], when it has to be asked again.
    pub async fn header(&self) -> anyhow::Result<Option<HeaderValue>> {
        if let Some(ends) = self.ends {
            families::certificate_ends(ends, Timestamp::now());
        }
        let mut last = self.last.lock().await;
        if last.expires.is_some_and(|at| Timestamp::now() + MARGIN >= at) {
            let exec = self.exec.clone();
            *last = tokio::task::spawn_blocking(move || ask(&exec)).await??.0;
        }
        Ok(last.header.clone())
    }
}

fn ask(exec: &ExecConfig) -> anyhow::Result<(Answer, Option<PemPair>)> {
    let name = exec.command.as_deref().context("exec plugin: command must be specified")?;
    let mut command = Command::new(name);
    command.args(exec.args.iter().flatten()).stdin(Stdio::null()).stderr(Stdio::inherit());
    for entry in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (entry.get("name"), entry.get("value")) {
            command.env(name, value);
        }
    }
    let output = command.env("KUBERNETES_EXEC_INFO", info(exec)?.to_string()).output();
    families::plugin_ran(&output.as_ref().map(|output| output.status).map_err(|e| e.kind().into()));
    let output = output.with_context(|| format!("exec: executable {name} failed"))?;
    ensure!(output.status.success(), "exec: executable {name} failed with {}", output.status);
    let said = proto::yaml::decode_any(&output.stdout).context("decoding stdout")?;
    read(&said)
}

/// When a certificate in PEM ends.
fn end(pem: &str) -> Option<Timestamp> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    Timestamp::from_second(block.parse_x509().ok()?.validity().not_after.timestamp()).ok()
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

fn read(said: &Value) -> anyhow::Result<(Answer, Option<PemPair>)> {
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
    Ok((Answer { header, expires }, pair))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(status: Value) -> anyhow::Result<(Answer, Option<PemPair>)> {
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
        let (plugin, _) = Plugin::start(&exec.expect("a plugin")).expect("credentials");
        let header = plugin.header().await.expect("credentials").expect("a token");
        assert_eq!(header, "Bearer t2");
        std::fs::remove_file(&count).expect("it counted");
    }

    #[test]
    fn a_program_that_is_not_there_or_fails() {
        for (command, args) in [("/nowhere/login", vec![]), ("sh", vec!["-c", "exit 1"]), ("echo", vec!["{}"])] {
            let exec = serde_json::from_value(json!({"command": command, "args": args})).expect("a plugin");
            assert!(Plugin::start(&exec).is_err(), "{command}");
        }
    }
}
