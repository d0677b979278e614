//! The connections to etcd as `--etcd-servers`, `--etcd-servers-overrides`, `--etcd-cafile`, `--etcd-certfile` and
//! `--etcd-keyfile` describe them.

use std::convert::Infallible;
use std::time::Duration;

use etcd_client::{BalancedChannelBuilder, Channel, Client, ConnectOptions};
use futures::StreamExt as _;
use shared::client::Dialer;
use tokio::sync::mpsc;
use tonic::transport::Endpoint;
use tonic::transport::channel::Change;
use tower::balance::p2c::Balance;
use tower::buffer::Buffer;
use tower::discover;
use tower::load::Constant;
use tower::util::BoxCloneSyncService;

use super::spans::Telling;
use super::{Error, secure};

/// Requests that wait for a connection which somebody else opens.
const REQUESTS: usize = 1024;
/// How long a connection may take.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
const PLAIN: &str = "http://";
const SECURE: &str = "https://";

/// Where etcd is and who we are to it.
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
    /// Its key.
    pub key_file: String,
    /// What is kept on other servers: paths as rows have them (`/registry/events`), and the servers.
    pub overrides: Vec<(String, Vec<String>)>,
    /// Path, group and plural of what is stored, for the metrics.
    pub named: Vec<(String, String, String)>,
    /// Opens the connections, where they do not go straight.
    pub dialer: Option<Dialer>,
    /// Whether calls are part of traces.
    pub traced: bool,
}

/// An element of `--etcd-servers-overrides`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
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
pub fn overrides(list: &[String]) -> Result<Vec<Override>, &'static str> {
    const INVALID: &str = "--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are URLs, semicolon separated";
    let read = |text: &String| {
        let (of, servers) = text.split_once('#').filter(|(_, servers)| !servers.contains('#')).ok_or(INVALID)?;
        let (group, resource) = of.split_once('/').filter(|(_, rest)| !rest.contains('/')).ok_or(INVALID)?;
        let servers = servers.split(';').map(str::to_owned).collect();
        Ok(Override { group: group.to_owned(), resource: resource.to_owned(), servers })
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

pub(super) async fn client(options: &Options, servers: &[String]) -> Result<Client, Error> {
    let connect = ConnectOptions::new()
        .with_connect_timeout(CONNECT)
        .with_keep_alive(Duration::from_secs(30), Duration::from_secs(10))
        .with_keep_alive_while_idle(true);
    let traced = options.traced;
    if servers.iter().any(|s| s.starts_with(SECURE)) {
        let through = Through { dialer: secure::dialer(options)?, secure: true, traced };
        let plain: Vec<String> = servers.iter().map(|server| server.replacen(SECURE, PLAIN, 1)).collect();
        return Ok(Client::connect_with_balanced_channel(plain, Some(connect), through).await?);
    }
    let dialer = options.dialer.clone().or_else(|| traced.then(secure::straight));
    Ok(match dialer {
        None => Client::connect(servers, Some(connect)).await?,
        Some(dialer) => {
            Client::connect_with_balanced_channel(servers, Some(connect), Through { dialer, secure: false, traced })
                .await?
        }
    })
}

/// Connections that are opened by a dialer, which makes them secure where they are to be: what is above it takes them for
/// plain ones then.
struct Through {
    dialer: Dialer,
    secure: bool,
    /// etcd is told which trace a call is part of.
    traced: bool,
}

impl BalancedChannelBuilder for Through {
    type Error = etcd_client::Error;

    fn balanced_channel(
        self,
        members: usize,
    ) -> Result<(Channel, mpsc::Sender<Change<http::Uri, Endpoint>>), Self::Error> {
        let (tell, told) = mpsc::channel::<Change<http::Uri, Endpoint>>(members);
        let secure = self.secure;
        let discovered = futures::stream::unfold((told, self.dialer), move |(mut told, dialer)| async move {
            let change = match told.recv().await? {
                Change::Insert(at, member) => {
                    let member = if secure { seen_as_secure(member) } else { member };
                    let channel = member.connect_with_connector_lazy(dialer.clone());
                    discover::Change::Insert(at, Constant::new(channel, 0_u8))
                }
                Change::Remove(at) => discover::Change::Remove(at),
            };
            Some((Ok::<_, Infallible>(change), (told, dialer)))
        });
        // Balance asks for more members as long as it lives, also after the last was told.
        let balanced = Buffer::new(Balance::new(Box::pin(discovered.fuse())), REQUESTS);
        let channel = match self.traced {
            true => BoxCloneSyncService::new(Telling(balanced)),
            false => BoxCloneSyncService::new(balanced),
        };
        Ok((Channel::Custom(channel), tell))
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
    fn one_connection_serves_all_that_is_on_the_same_servers() {
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
