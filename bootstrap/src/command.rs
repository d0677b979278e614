//! The command line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Command};
use ipnet::IpNet;
use shared::client::{self, Options};

use crate::cluster::{self, Task};
use crate::objects::ObjectClient;
use crate::plan::{self, Plan};
use crate::{certificates, check};

/// Carries a command line out.
///
/// # Errors
/// Names the step that failed.
pub async fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<()> {
    match command().get_matches_from(arguments).subcommand() {
        Some(("certificates", given)) => make(given).await,
        Some(("cluster", given)) => fill(given).await,
        Some(("check", given)) => {
            let server = format!("https://{}", value(given, "internal"));
            let mut tenant = objects(given, "kubeconfig", &server).await?;
            check::run(&mut tenant, given.get_flag("konnectivity"), deadline(given)).await
        }
        Some(("remove", given)) => {
            let host = objects(given, "host-kubeconfig", "").await?;
            certificates::remove(&host, value(given, "namespace"), value(given, "name")).await
        }
        _ => bail!("unknown command"),
    }
}

/// Before a Service has an address, those who are outside are given the one of those beside it.
async fn make(given: &ArgMatches) -> Result<()> {
    let (mut host, mut plan) = (objects(given, "host-kubeconfig", "").await?, plan(given)?);
    if cluster::locate(&host, &mut plan).await?.is_none() && plan::host(&plan.endpoint).is_empty() {
        plan.endpoint.clone_from(&plan.internal);
    }
    certificates::ensure(&mut host, &plan, &labels(given)?).await
}

async fn fill(given: &ArgMatches) -> Result<()> {
    let mut plan = plan(given)?;
    let addresses = given.get_many::<String>("address").unwrap_or_default();
    let addresses = addresses.map(|text| text.parse().with_context(|| format!("{text} is no address")));
    let folder = given.get_one::<PathBuf>("manifests");
    let ttl = given.get_one::<u64>("token-hours").copied().map(Duration::from_hours);
    let mut task = Task {
        manifests: folder.map(PathBuf::as_path),
        token: ttl,
        addresses: addresses.collect::<Result<_>>()?,
        deadline: deadline(given),
        labels: labels(given)?,
    };
    let mut host = objects(given, "host-kubeconfig", "").await?;
    let found = cluster::await_address(&host, &mut plan, task.deadline).await?;
    if task.addresses.is_empty() {
        task.addresses = found;
    }
    println!("the control plane is at {}", plan.endpoint);
    certificates::ensure(&mut host, &plan, &task.labels).await?;
    // Until the certificate that was issued just now has reached the pods, they serve the one before.
    let mut config = client::config(&options(given, "kubeconfig", &format!("https://{}", plan.internal))).await?;
    config.tls_server_name = Some(plan::host(&plan.endpoint).to_owned());
    let connected = || anyhow::Ok(ObjectClient::new(client::connect(&config, &client::Throttle::new(0.0, 0))?));
    cluster::wait(task.deadline, async || connected()?.text("/readyz").await.map(drop)).await?;
    cluster::fill(&mut host, &mut connected()?, &plan, &task).await
}

fn command() -> Command {
    let host = || {
        option("host-kubeconfig", "kubeconfig of the cluster that hosts it; the pod's own without").default_value("")
    };
    let named = |command: Command| {
        command
            .arg(option("name", "prefix of the names of its Secrets, and name of its Service").required(true))
            .arg(option("namespace", "namespace it runs in").required(true))
            .arg(host())
    };
    let planned = |command: Command| {
        named(command)
            .arg(option("host-domain", "domain of the cluster that hosts it").default_value("cluster.local"))
            .arg(
                option("endpoint", "HOST:PORT for nodes and clients; without a host the Service's address")
                    .required(true),
            )
            .arg(option("internal", "HOST:PORT of its Service").required(true))
            .arg(
                option("service-cidr", "Service addresses of the new cluster")
                    .required(true)
                    .value_parser(clap::value_parser!(IpNet)),
            )
            .arg(option("dns-domain", "domain of the new cluster").default_value("cluster.local"))
            .arg(option("server-name", "one more name or address of the API server").action(ArgAction::Append))
            .arg(option("label", "KEY=VALUE of Secrets").action(ArgAction::Append))
            .arg(option("konnectivity", "HOST:PORT for agents of a tunnel; without a host that of --endpoint"))
            .arg(
                option("validity-days", "days that certificates last")
                    .default_value("365")
                    .value_parser(clap::value_parser!(u64).range(1..=3650)),
            )
    };
    let timed = |command: Command| {
        command.arg(
            option("timeout-seconds", "seconds until it gives up")
                .default_value("300")
                .value_parser(clap::value_parser!(u64).range(1..=86400)),
        )
    };
    let kubeconfig = || option("kubeconfig", "administrator's kubeconfig of the new cluster").required(true);
    Command::new("control-plane-bootstrap")
        .version(shared::version::git_version())
        .about("Certificates, kubeconfigs and the first objects of a control plane that runs in pods")
        .subcommand_required(true)
        .subcommand(planned(Command::new("certificates").about("make and renew its Secrets")))
        .subcommand(
            timed(planned(Command::new("cluster").about("wait for it and fill it")))
                .arg(kubeconfig())
                .arg(
                    option("address", "address of the API server for pods of the new cluster")
                        .action(ArgAction::Append),
                )
                .arg(option("manifests", "folder of manifests to apply").value_parser(clap::value_parser!(PathBuf)))
                .arg(
                    option("token-hours", "hours that a token to join is valid, 0 for ever; without it there is none")
                        .value_parser(clap::value_parser!(u64).range(0..=87600)),
                ),
        )
        .subcommand(
            timed(Command::new("check").about("see whether it does its work"))
                .arg(kubeconfig())
                .arg(option("internal", "HOST:PORT of its Service").required(true))
                .arg(
                    option("konnectivity", "see whether nodes are reached through a tunnel as well")
                        .action(ArgAction::SetTrue),
                ),
        )
        .subcommand(named(Command::new("remove").about("delete its Secrets")))
}

fn option(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help)
}

fn value<'a>(given: &'a ArgMatches, name: &str) -> &'a str {
    given.get_one::<String>(name).map(String::as_str).unwrap_or_default()
}

fn deadline(given: &ArgMatches) -> Instant {
    Instant::now() + Duration::from_secs(given.get_one("timeout-seconds").copied().unwrap_or(300))
}

fn labels(given: &ArgMatches) -> Result<BTreeMap<String, String>> {
    let labels = given.get_many::<String>("label").unwrap_or_default();
    let split = |label: &String| {
        let (key, value) = label.split_once('=').with_context(|| format!("{label} is no KEY=VALUE"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    labels.map(split).collect()
}

fn plan(given: &ArgMatches) -> Result<Plan> {
    let endpoint = with_port(given, "endpoint")?.context("no --endpoint")?;
    let days: u64 = given.get_one("validity-days").copied().unwrap_or(365);
    Ok(Plan {
        name: value(given, "name").into(),
        namespace: value(given, "namespace").into(),
        host_domain: value(given, "host-domain").into(),
        endpoint,
        internal: value(given, "internal").into(),
        services: *given.get_one("service-cidr").context("no --service-cidr")?,
        dns_domain: value(given, "dns-domain").into(),
        names: given.get_many::<String>("server-name").unwrap_or_default().cloned().collect(),
        konnectivity: with_port(given, "konnectivity")?,
        validity: Duration::from_hours(24 * days),
    })
}

/// An option of the form `HOST:PORT`, the host of which may be empty.
fn with_port(given: &ArgMatches, name: &str) -> Result<Option<String>> {
    let Some(text) = given.get_one::<String>(name) else { return Ok(None) };
    let port = text.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).filter(|port| *port > 0);
    port.with_context(|| format!("--{name}={text} is no HOST:PORT"))?;
    Ok(Some(text.clone()))
}

async fn objects(given: &ArgMatches, kubeconfig: &str, master: &str) -> Result<ObjectClient> {
    Ok(ObjectClient::new(client::new(&options(given, kubeconfig, master)).await?))
}

fn options(given: &ArgMatches, kubeconfig: &str, master: &str) -> Options {
    Options {
        kubeconfig: value(given, kubeconfig).into(),
        master: master.into(),
        qps: 0.0,
        burst: 0,
        user_agent: client::user_agent("control-plane-bootstrap"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn endpoints_have_ports() {
        for (endpoint, good) in [
            ("t1.example:6443", true),
            (":30443", true),
            ("[fd00::1]:443", true),
            ("t1.example", false),
            ("a:0", false),
        ] {
            let line = [
                "x",
                "certificates",
                "--name=t1",
                "--namespace=n",
                "--internal=t1:6443",
                "--service-cidr=10.96.0.0/12",
            ];
            let [own, tunnel] = ["endpoint", "konnectivity"].map(|name| format!("--{name}={endpoint}"));
            for more in [&[own.as_str()][..], &["--endpoint=a:1", &tunnel]] {
                let given = command().get_matches_from(line.iter().chain(more));
                let (_, given) = given.subcommand().expect("a command");
                assert_eq!(plan(given).is_ok(), good, "{more:?}");
            }
        }
    }
}
