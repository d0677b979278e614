//! The connections to etcd as `--etcd-servers`, `--etcd-servers-overrides`, `--etcd-cafile`, `--etcd-certfile` and
//! `--etcd-keyfile` describe them.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Channel as EtcdChannel, Client, ConnectOptions, MaintenanceClient};
use shared::client::Dialer;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

use super::failover::Failover;
use super::members::{Members, PROBE_DEADLINE, PROBE_INTERVAL};
use super::trace_injector::TraceInjector;
use super::{Error, secure};

/// Time that opening a connection may take.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
const PLAIN: &str = "http://";
const SECURE: &str = "https://";

/// Connection options of etcd.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `https://host:port` of each member.
    pub servers: Vec<String>,
    /// Key prefix of this cluster.
    pub prefix: String,
    /// Certificate authority of the servers, or empty.
    pub ca_file: String,
    /// Seconds a lease may be handed out again, `--lease-reuse-duration-seconds`.
    pub lease_reuse: i64,
    /// Our client certificate, or empty.
    pub cert_file: String,
    /// Key of the client certificate.
    pub key_file: String,
    /// Servers of single resources (`--etcd-servers-overrides`): paths as rows have them (`/registry/events`), and the
    /// servers.
    pub overrides: Vec<(String, Vec<String>)>,
    /// Path, group and plural of what is stored, for the metrics.
    pub named: Vec<(String, String, String)>,
    /// Opens the connections, where they do not go straight.
    pub dialer: Option<Dialer>,
    /// Calls are traced.
    pub traced: bool,
}

/// An element of `--etcd-servers-overrides`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOverride {
    /// API group, empty for core.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// `https://host:port` of each member.
    pub servers: Vec<String>,
}

/// Reads `--etcd-servers-overrides`: `group/resource#server;server`.
///
/// # Errors
/// Upstream's text for an element of another form.
pub fn overrides(list: &[String]) -> Result<Vec<ServerOverride>, &'static str> {
    const INVALID: &str = "--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are URLs, semicolon separated";
    let read = |text: &String| {
        let (of, servers) = text.split_once('#').filter(|(_, servers)| !servers.contains('#')).ok_or(INVALID)?;
        let (group, resource) = of.split_once('/').filter(|(_, rest)| !rest.contains('/')).ok_or(INVALID)?;
        let servers = servers.split(';').map(str::to_owned).collect();
        Ok(ServerOverride { group: group.to_owned(), resource: resource.to_owned(), servers })
    };
    list.iter().map(read).collect()
}

impl Options {
    /// The other servers, each once, and what they keep.
    pub(super) fn elsewhere(&self) -> Vec<(&[String], Vec<&str>)> {
        let mut found: Vec<(&[String], Vec<&str>)> = Vec::new();
        for (path, servers) in &self.overrides {
            match found.iter_mut().find(|(known, _)| known == servers) {
                Some((_, paths)) => paths.push(path),
                None => found.push((servers, vec![path])),
            }
        }
        found
    }
}

/// Opens connections to all members of an etcd cluster, which share what is known of the members' health.
///
/// # Errors
/// The files of the certificates cannot be read, or a server's address is none.
pub(super) async fn client(options: &Options, members: &Arc<Members>, servers: &[String]) -> Result<Client, Error> {
    let secure = servers.iter().any(|server| server.starts_with(SECURE));
    let dialer = match secure {
        true => Some(secure::dialer(options)?),
        false => options.dialer.clone(),
    };
    let channels =
        servers.iter().map(|server| channel(server, secure, dialer.as_ref())).collect::<Result<Vec<_>, _>>()?;
    let channel = match <[Channel; 1]>::try_from(channels) {
        // One member: there is nothing to choose from.
        Ok([only]) if !options.traced => EtcdChannel::Tonic(only),
        Ok([only]) => custom(TraceInjector(only.map_err(BoxError::from))),
        Err(none) if none.is_empty() => return Err(etcd_client::Error::InvalidArgs("empty endpoints".into()).into()),
        Err(all) if options.traced => custom(TraceInjector(Failover::new(all, members.clone()))),
        Err(all) => custom(Failover::new(all, members.clone())),
    };
    // A member that is cut off from the others refuses at once, so that another can be asked.
    let require_leader = ConnectOptions::new().with_require_leader(servers.len() > 1);
    Ok(Client::from_channel(channel, Some(require_leader)).await?)
}

fn custom<S>(service: S) -> EtcdChannel
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = BoxError> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    EtcdChannel::Custom(BoxCloneSyncService::new(service))
}

/// The connection to one member, which is opened when it is needed, also again.
fn channel(server: &str, secure: bool, dialer: Option<&Dialer>) -> Result<Channel, Error> {
    let uri = match server.contains("://") {
        true => server.replacen(SECURE, PLAIN, 1),
        false => [PLAIN, server].concat(),
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(etcd_client::Error::from)?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    let endpoint = if secure { seen_as_secure(endpoint) } else { endpoint };
    Ok(match dialer {
        Some(dialer) => endpoint.connect_with_connector_lazy(dialer.clone()),
        None => endpoint.connect_lazy(),
    })
}

/// Probes each member of an etcd cluster until the tasks are aborted. A single member is not probed: there is no other.
pub(super) fn probe(options: &Options, members: &Arc<Members>, servers: &[String]) -> JoinSet<()> {
    let mut probes = JoinSet::new();
    if servers.len() < 2 {
        return probes;
    }
    for (at, server) in servers.iter().enumerate() {
        let (options, members, server) = (options.clone(), members.clone(), [server.clone()]);
        probes.spawn(async move {
            let alone = Arc::new(Members::new(&server));
            let Ok(client) = client(&options, &alone, &server).await else { return };
            loop {
                let outcome = probe_once(client.maintenance_client()).await;
                let failed = outcome.is_err();
                members.probed(at, outcome);
                // The second failure decides, so it is not waited for.
                if !failed || !members.is_healthy(at) {
                    tokio::time::sleep(PROBE_INTERVAL).await;
                }
            }
        });
    }
    probes
}

/// A member that is not well.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// A member without a leader, which cannot answer anybody.
    #[error("etcdserver: no leader")]
    NoLeader,
    /// A refusal, or a member that cannot be reached.
    #[error(transparent)]
    Etcd(#[from] etcd_client::Error),
    /// No answer in time.
    #[error("context deadline exceeded")]
    Deadline,
}

/// Asks a member for its status. A member without a leader cannot answer anybody.
async fn probe_once(mut member: MaintenanceClient) -> Result<(), ProbeError> {
    match tokio::time::timeout(PROBE_DEADLINE, member.status()).await {
        Ok(Ok(status)) if status.leader() != 0 => Ok(()),
        Ok(Ok(_)) => Err(ProbeError::NoLeader),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(ProbeError::Deadline),
    }
}

/// Requests say what the connection is.
fn seen_as_secure(member: Endpoint) -> Endpoint {
    match member.uri().to_string().replacen(PLAIN, SECURE, 1).parse() {
        Ok(uri) => member.origin(uri),
        Err(_) => member,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_name_a_resource_and_its_servers() {
        let read = |text: &str| overrides(&[text.to_owned()]).map(|mut o| o.remove(0));
        let events = read("/events#http://a:2379;http://b:2379").unwrap();
        assert_eq!((events.group.as_str(), events.resource.as_str()), ("", "events"));
        assert_eq!(events.servers, ["http://a:2379", "http://b:2379"]);
        assert_eq!(read("coordination.k8s.io/leases#http://a:2379").unwrap().group, "coordination.k8s.io");
        for wrong in ["/events/http://127.0.0.1:4002", "events#http://a:2379", "/a/b#http://a", "/events#a#b"] {
            assert!(read(wrong).unwrap_err().starts_with("--etcd-servers-overrides invalid"), "{wrong}");
        }
    }

    #[test]
    fn overrides_on_the_same_servers_share_a_connection() {
        let list: Vec<_> =
            ["/events#http://a", "coordination.k8s.io/leases#http://b", "/pods#http://a"].map(str::to_owned).into();
        let overrides = overrides(&list).unwrap().into_iter().map(|o| (format!("/registry/{}", o.resource), o.servers));
        let options = Options {
            servers: Vec::new(),
            prefix: String::new(),
            ca_file: String::new(),
            cert_file: String::new(),
            key_file: String::new(),
            overrides: overrides.collect(),
            lease_reuse: 60,
            named: Vec::new(),
            dialer: None,
            traced: false,
        };
        let paths: Vec<_> = options.elsewhere().into_iter().map(|(_, paths)| paths).collect();
        assert_eq!(paths, [vec!["/registry/events", "/registry/pods"], vec!["/registry/leases"]]);
    }
}
