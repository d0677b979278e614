//! `ironclad`: what people do by hand around a cluster. So far its certificates.

use std::io::Write as _;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use jiff::{SignedDuration, Timestamp};
use pki::authority::{Authority, Leaf, Purpose};
use pki::cluster::Machine;
use pki::expiration::Expirations;
use pki::keys::Algorithm;
use pki::kubeconfig::{self, Demand};
use pki::renewal::{self, Renewal};

/// The most that a certificate may last: 100 years of 365 days.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// Exit code when a certificate ends within the time asked about.
const ENDING: u8 = 2;

fn main() -> ExitCode {
    match run(&command().get_matches()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Command {
    let pki = Command::new("pki")
        .about("Certificates, keys and kubeconfigs of a cluster, in kubeadm's layout")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(init_command())
        .subcommand(renew_command())
        .subcommand(expiration_command())
        .subcommand(kubeconfig_command())
        .subcommand(certificate_command());
    Command::new("ironclad")
        .about("Tools for an Ironclad cluster")
        .version(concat!("v", env!("CARGO_PKG_VERSION")))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(pki)
}

fn init_command() -> Command {
    let command = Command::new("init")
        .about("Make the PKI of a control-plane machine; keep and check what is there")
        .arg(option("node-name", "name of this machine's node (default: its host name)"))
        .arg(
            option("apiserver-advertise-address", "address of the API server (default: that of the default route)")
                .value_parser(value_parser!(IpAddr)),
        )
        .arg(
            option("apiserver-bind-port", "port of the API server")
                .default_value("6443")
                .value_parser(value_parser!(u16)),
        )
        .arg(option("control-plane-endpoint", "address or name, and port, of the whole control plane"))
        .arg(option("service-cidr", "ranges of Services, separated by commas").default_value("10.96.0.0/12"))
        .arg(option("service-dns-domain", "domain of Services").default_value("cluster.local"))
        .arg(many("apiserver-cert-extra-sans", "more names and addresses of the API server"))
        .arg(many("etcd-extra-sans", "more names and addresses of etcd"));
    with_keys(with_folders(command))
}

fn renew_command() -> Command {
    let names: Vec<&str> = std::iter::once("all").chain(renewal::names()).collect();
    with_folders(Command::new("renew"))
        .about("Renew certificates: new keys and a new time, names as they are")
        .arg(validity())
        .arg(Arg::new("name").required(true).action(ArgAction::Append).value_parser(PossibleValuesParser::new(names)))
}

fn expiration_command() -> Command {
    with_folders(Command::new("check-expiration"))
        .about("Tell when certificates expire")
        .arg(option("output", "text or json").short('o').default_value("text").value_parser(["text", "json"]))
        .arg(
            option("within", "exit with code 2 when one expires within this time, such as 720h")
                .value_parser(|text: &str| duration(text)),
        )
}

fn kubeconfig_command() -> Command {
    let command = Command::new("kubeconfig")
        .about("Make the kubeconfig of another user, of a worker's kubelet for instance")
        .arg(option("user", "the user: common name of the certificate").required(true))
        .arg(many("group", "a group of the user"))
        .arg(option("server", "URL of the API server").required(true))
        .arg(path("out", "file to write").required(true));
    with_keys(with_folders(command))
}

fn certificate_command() -> Command {
    let command = Command::new("certificate")
        .about("Make another certificate, for the kubelet's server or an etcd member on another machine for instance")
        .arg(option("ca", "authority").default_value("ca").value_parser(["ca", "etcd-ca", "front-proxy-ca"]))
        .arg(option("common-name", "common name of the subject").required(true))
        .arg(many("group", "an organization of the subject"))
        .arg(many("san", "a DNS name or address"))
        .arg(option("usage", "uses").default_value("server").value_parser(["client", "server", "both"]))
        .arg(path("out", "files to write, without .crt and .key").required(true));
    with_keys(with_folders(command))
}

fn option(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help)
}

fn many(name: &'static str, help: &'static str) -> Arg {
    option(name, help).action(ArgAction::Append).value_delimiter(',')
}

fn path(name: &'static str, help: &'static str) -> Arg {
    option(name, help).value_parser(value_parser!(PathBuf))
}

fn validity() -> Arg {
    option("validity", "how long new certificates last")
        .default_value("8760h")
        .value_parser(|text: &str| duration(text))
}

fn with_folders(command: Command) -> Command {
    command
        .arg(path("cert-dir", "folder of certificates").default_value("/etc/kubernetes/pki"))
        .arg(path("kubeconfig-dir", "folder of kubeconfigs").default_value("/etc/kubernetes"))
}

fn with_keys(command: Command) -> Command {
    command.arg(validity()).arg(
        option("encryption-algorithm", "kind of new keys")
            .default_value(Algorithm::NAMES[0])
            .value_parser(PossibleValuesParser::new(Algorithm::NAMES)),
    )
}

/// A duration as Go writes it: `8760h`, `1h30m`.
fn duration(text: &str) -> Result<Duration> {
    let parsed: SignedDuration = text.parse().map_err(|error| anyhow!("{error}"))?;
    let duration = Duration::try_from(parsed).map_err(|_| anyhow!("a duration is not negative"))?;
    ensure!(duration <= LONGEST, "more than 100 years");
    Ok(duration)
}

fn run(matches: &ArgMatches) -> Result<ExitCode> {
    let Some(("pki", matches)) = matches.subcommand() else { bail!("unknown command") };
    match matches.subcommand() {
        Some(("init", given)) => machine(given)?.init()?,
        Some(("renew", given)) => renew(given)?,
        Some(("check-expiration", given)) => return check_expiration(given),
        Some(("kubeconfig", given)) => make_kubeconfig(given)?,
        Some(("certificate", given)) => make_certificate(given)?,
        _ => bail!("unknown command"),
    }
    Ok(ExitCode::SUCCESS)
}

fn machine(given: &ArgMatches) -> Result<Machine> {
    let node = match given.get_one::<String>("node-name") {
        Some(name) => name.clone(),
        None => nix::unistd::gethostname()?.to_string_lossy().to_lowercase(),
    };
    let address = match given.get_one::<IpAddr>("apiserver-advertise-address") {
        Some(address) => *address,
        None => default_address().context("no default route; use --apiserver-advertise-address")?,
    };
    let ranges = text(given, "service-cidr")?.split(',');
    Ok(Machine {
        certificates: folder(given, "cert-dir")?,
        kubeconfigs: folder(given, "kubeconfig-dir")?,
        node,
        address,
        port: given.get_one("apiserver-bind-port").copied().unwrap_or(6443),
        endpoint: given.get_one::<String>("control-plane-endpoint").cloned(),
        services: ranges.map(first_address).collect::<Result<_>>()?,
        domain: text(given, "service-dns-domain")?.to_owned(),
        extra_names: all(given, "apiserver-cert-extra-sans"),
        etcd_names: all(given, "etcd-extra-sans"),
        algorithm: algorithm(given)?,
        validity: lasting(given),
    })
}

fn renew(given: &ArgMatches) -> Result<()> {
    let asked = all(given, "name");
    let every = asked.iter().any(|name| name == "all");
    let names = if every { renewal::names().map(str::to_owned).collect() } else { asked };
    let (certificates, kubeconfigs) = (folder(given, "cert-dir")?, folder(given, "kubeconfig-dir")?);
    for name in names {
        let told = match renewal::renew(&certificates, &kubeconfigs, &name, lasting(given))? {
            Renewal::Renewed => "renewed",
            Renewal::Missing if every => continue,
            Renewal::Missing => bail!("{name} is not there"),
            Renewal::External => "not renewed: the key of its authority is not here",
            Renewal::InFiles => "not renewed: its certificate is in a file that the kubelet renews",
        };
        say(&format!("{name} {told}\n"))?;
    }
    say("Restart kube-controller-manager, kube-scheduler and etcd, and whoever else has a copy of what was renewed.\n")
}

fn check_expiration(given: &ArgMatches) -> Result<ExitCode> {
    let report = Expirations::read(&folder(given, "cert-dir")?, &folder(given, "kubeconfig-dir")?)?;
    let now = Timestamp::now();
    match text(given, "output")? {
        "json" => say(&format!("{:#}\n", report.json(now)))?,
        _ => say(&report.table(now))?,
    }
    let Some(within) = given.get_one::<Duration>("within") else { return Ok(ExitCode::SUCCESS) };
    let limit = now.checked_add(SignedDuration::try_from(*within)?)?;
    Ok(if report.first_end().is_some_and(|end| end < limit) { ENDING.into() } else { ExitCode::SUCCESS })
}

fn make_kubeconfig(given: &ArgMatches) -> Result<()> {
    let ca = Authority::open(&folder(given, "cert-dir")?.join("ca"))?;
    let user = text(given, "user")?;
    let mut leaf = Leaf::client(user, None);
    leaf.organizations = all(given, "group");
    let demand = Demand { user, leaf, algorithm: algorithm(given)?, validity: lasting(given) };
    kubeconfig::keep_or_issue(&folder(given, "out")?, &ca, text(given, "server")?, &demand)
}

fn make_certificate(given: &ArgMatches) -> Result<()> {
    let row = pki::cluster::authority_row(text(given, "ca")?)?;
    let ca = Authority::open(&folder(given, "cert-dir")?.join(row.file))?;
    let purpose = match text(given, "usage")? {
        "client" => Purpose::Client,
        "both" => Purpose::Both,
        _ => Purpose::Server,
    };
    let leaf = Leaf {
        common_name: text(given, "common-name")?.to_owned(),
        organizations: all(given, "group"),
        names: all(given, "san"),
        purpose,
    };
    ca.keep_or_issue(&folder(given, "out")?, &leaf, algorithm(given)?, lasting(given))
}

fn text<'a>(given: &'a ArgMatches, name: &str) -> Result<&'a str> {
    given.get_one::<String>(name).map(String::as_str).with_context(|| format!("no --{name}"))
}

fn folder(given: &ArgMatches, name: &str) -> Result<PathBuf> {
    given.get_one::<PathBuf>(name).cloned().with_context(|| format!("no --{name}"))
}

fn all(given: &ArgMatches, name: &str) -> Vec<String> {
    given.get_many::<String>(name).unwrap_or_default().cloned().collect()
}

fn algorithm(given: &ArgMatches) -> Result<Algorithm> {
    text(given, "encryption-algorithm")?.parse()
}

fn lasting(given: &ArgMatches) -> Duration {
    given.get_one("validity").copied().unwrap_or(pki::authority::VALIDITY)
}

fn say(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}

/// The first address that a range gives to a Service.
fn first_address(range: &str) -> Result<IpAddr> {
    let wrong = || format!("{range} is no range of addresses");
    let (address, length) = range.split_once('/').with_context(wrong)?;
    let length: u32 = length.parse().with_context(wrong)?;
    Ok(match address.parse().with_context(wrong)? {
        IpAddr::V4(address) => {
            ensure!(length <= 30, wrong());
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            IpAddr::from(((address.to_bits() & mask) + 1).to_be_bytes())
        }
        IpAddr::V6(address) => {
            ensure!(length <= 126, wrong());
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            IpAddr::from(((address.to_bits() & mask) + 1).to_be_bytes())
        }
    })
}

/// The address that packets to elsewhere leave from; none is sent.
fn default_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_first_addresses() {
        for (range, expected) in [
            ("10.96.0.0/12", "10.96.0.1"),
            ("10.97.3.4/12", "10.96.0.1"),
            ("0.0.0.0/0", "0.0.0.1"),
            ("fd00:169::/112", "fd00:169::1"),
        ] {
            assert_eq!(first_address(range).unwrap().to_string(), expected, "{range}");
        }
        for range in ["10.96.0.0", "10.96.0.0/31", "10.96.0.0/33", "x/8", "fd00::/127", "/"] {
            assert!(first_address(range).is_err(), "{range}");
        }
    }

    #[test]
    fn durations_are_as_in_go_and_bounded() {
        assert_eq!(duration("8760h").unwrap(), pki::authority::VALIDITY);
        for text in ["", "1", "-1h", "876001h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn command_line_is_consistent() {
        command().debug_assert();
    }
}
