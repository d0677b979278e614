//! `kube-proxy --dry-run`: the commands that would write all rules of a node, as a script; `--from-dump FILE` takes the
//! objects from a file instead of from the API server. All other flags mean what they mean otherwise. The kernel is neither
//! read nor changed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Node;
use shared::flags::FlagSet;
use shared::tool;

use crate::addresses::NodePortResolver;
use crate::backend::{DryRun, Environment};
use crate::cluster::Cluster;
use crate::component::{backend, configuration, networks};
use crate::plan::{Family, NodeFacts};
use crate::proxier;
use crate::settings::{Settings, parse};

const FLAG: &str = "--dry-run";
const FROM: &str = "--from-dump";

/// Runs the command if the arguments (without the program's name) ask for it.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    arguments.iter().any(|argument| argument == FLAG).then(|| tool::print(script(arguments)))
}

/// Takes the command's own flags out of the arguments, and returns the file.
fn own(arguments: Vec<OsString>) -> Result<(Option<PathBuf>, Vec<OsString>)> {
    let (mut file, mut rest) = (None, Vec::new());
    let mut arguments = arguments.into_iter().filter(|argument| argument != FLAG);
    while let Some(argument) = arguments.next() {
        let joined = argument.to_str().and_then(|text| text.strip_prefix(FROM)?.strip_prefix('='));
        match joined {
            Some(path) => file = Some(PathBuf::from(path)),
            None if argument == FROM => {
                file = Some(arguments.next().context("flag needs an argument: --from-dump")?.into())
            }
            None => rest.push(argument),
        }
    }
    Ok((file, rest))
}

async fn script(arguments: Vec<OsString>) -> Result<String> {
    let (file, rest) = own(arguments)?;
    let flags = FlagSet::parse("kube-proxy", rest).map_err(|stop| anyhow::anyhow!("{stop}"))?;
    let host = shared::serve::hostname();
    let settings = parse(configuration(&flags)?, &flags.feature_gates(), flags.string("master"), &host)?;
    let cluster = match &file {
        Some(file) => Cluster::load(file)?,
        None => {
            let kubeconfig = (!settings.kubeconfig.is_empty()).then(|| PathBuf::from(&settings.kubeconfig));
            Cluster::read(&tool::connect("kube-proxy-dry-run", kubeconfig.as_deref()).await?).await?
        }
    };
    let Some(node) = cluster.node(&settings.node_name) else {
        bail!("node {:?} not found, name one with --hostname-override", settings.node_name);
    };
    let mut text = String::new();
    for family in [Family::V4, Family::V6] {
        text += &written(&settings, &cluster, node, family).await?;
    }
    Ok(text)
}

async fn written(settings: &Settings, cluster: &Cluster, node: &Node, family: Family) -> Result<String> {
    let networks = networks(node);
    let resolver =
        NodePortResolver { configured: settings.node_port_addresses.clone(), node: networks.addresses.clone() };
    let service_networks = proxier::service_networks(cluster.networks.iter());
    let environment = Environment {
        node_ports: resolver.resolve(family),
        service_networks: service_networks.into_iter().filter(|network| family.holds(network.addr())).collect(),
    };
    let script = DryRun::default();
    let mut backend = backend(settings, family, &networks, environment, Some(script.clone()));
    backend.sync(&cluster.desired(&NodeFacts::of(node), family), &BTreeSet::new()).await?;
    Ok(format!("# {} {}\n{}", settings.mode.name, family.address_type(), script.text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(more: &[&str]) -> Vec<OsString> {
        more.iter().map(OsString::from).collect()
    }

    /// Objects of a node with one service of each kind.
    fn dump() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let objects = serde_json::json!({"kind": "List", "items": [
            {"kind": "Node", "metadata": {"name": "n1"}, "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
             "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
            {"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.96.0.5",
             "type": "NodePort", "sessionAffinity": "ClientIP", "ports": [{"port": 80, "nodePort": 30080}]}},
            {"kind": "EndpointSlice", "metadata": {"name": "web-1", "namespace": "shop",
             "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
             "endpoints": [{"addresses": ["10.244.0.7"], "nodeName": "n1"}], "ports": [{"port": 8080}]},
        ]});
        std::fs::write(file.path(), objects.to_string()).expect("written");
        file
    }

    #[tokio::test]
    async fn every_mode_prints_its_rules() {
        let dump = dump();
        let from = format!("--from-dump={}", dump.path().display());
        for mode in crate::mode::MODES {
            let name = format!("--proxy-mode={}", mode.name);
            let asked =
                arguments(&["--dry-run", &from, &name, "--hostname-override=n1", "--cluster-cidr=10.244.0.0/16"]);
            let text = script(asked).await.expect("a script");
            assert!(text.starts_with(&format!("# {} IPv4\n", mode.name)), "{}", mode.name);
            assert!(text.contains(&format!("\n# {} IPv6\n", mode.name)), "{}", mode.name);
            for part in ["10.96.0.5", "30080"] {
                assert!(text.contains(part), "{}: {part} in\n{text}", mode.name);
            }
        }
    }

    #[tokio::test]
    async fn other_flags_are_read_and_checked() {
        let dump = dump();
        let from = dump.path().display().to_string();
        let asked = |more: &[&str]| arguments(&[&["--dry-run", "--from-dump", &from], more].concat());
        let error = script(asked(&["--hostname-override=n2"])).await.expect_err("no such node").to_string();
        assert_eq!(error, "node \"n2\" not found, name one with --hostname-override");
        assert!(script(asked(&["--hostname-override=n1", "--proxy-mode=x"])).await.is_err());
        assert!(script(asked(&["--nonsense"])).await.is_err());
        assert!(script(arguments(&["--dry-run", "--from-dump"])).await.is_err());
    }
}
