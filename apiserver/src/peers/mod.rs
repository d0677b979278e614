//! Other API servers of the cluster, which may be of another version and serve what this one does not (behind
//! `UnknownVersionInteroperabilityProxy`). Answers for upstream's mixed version proxy.
//!
//! Each server says in etcd where it is found ([`lease`]) and is asked what it serves. A request for what only others
//! serve is sent on to one of them, once; discovery tells of all ([`merge`]). What definitions and API services make is
//! every server's own affair: peers are not asked for it, nor for what such a one made until a while ago.

mod error;
mod lease;
mod merge;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::{HttpRequest, HttpResponse, web};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use proto::Value;
use rand::seq::IndexedRandom as _;
use shared::authn::UserInfo;
use shared::flags::FlagSet;
use shared::metrics;
use shared::status::Status;

use crate::aggregate::{Aggregator, Backend, Directory, PROXIED};
use crate::api::{Reader, RequestInfo, ServerContext};
use crate::backoff::Backoff;
use crate::machinery::{identity, tree};
use crate::registry::coordination::lease::LEASES;
use crate::rows::Rows;
use crate::storage::Store;
use error::{PeerDiscoveryError, PeersError};

const GATE: &str = "UnknownVersionInteroperabilityProxy";
const NAMESPACE: &str = "kube-system";
const LABEL: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
/// Time between two words of where this server is.
const RENEW: Duration = Duration::from_secs(10);
/// Time between two looks at who there is; leases of all sorts change all the time.
const LOOK: Duration = Duration::from_secs(1);
/// Time for which a group version that a definition or API service provided is not proxied after that is gone.
const GRACE: Duration = Duration::from_secs(5 * 60);
/// Attempts to fetch the discovery of a peer, and their delay.
const ASKED: u32 = 20;
const AGAIN: Duration = Duration::from_millis(5);
const LATEST: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest document read.
const LIMIT: usize = 8 << 20;
/// `Accept` header of a peer's own discovery, and of one that knows no peers.
const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
    application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

type GroupVersion = (String, String);

/// Resources of a peer.
#[derive(Default, Clone, Debug, PartialEq)]
struct PeerResources {
    /// Group, version and plural.
    resources: HashSet<(String, String, String)>,
    /// Without the group that has no name, which discovery tells of elsewhere.
    groups: Vec<Value>,
}

impl PeerResources {
    /// Adds what a document says.
    fn take(&mut self, document: &Value) {
        for group in tree::list(document, "/items") {
            let name = merge::group_name(group);
            for version in tree::list(group, "/versions") {
                let key = |r: &Value| {
                    (name.to_owned(), tree::text(version, "/version").to_owned(), tree::text(r, "/resource").to_owned())
                };
                self.resources.extend(tree::list(version, "/resources").iter().map(key));
            }
            if !name.is_empty() {
                self.groups.push(group.clone());
            }
        }
    }

    /// The groups without some versions.
    fn groups_but(&self, excluded: &HashSet<GroupVersion>) -> Vec<Value> {
        let mut groups = self.groups.clone();
        for group in &mut groups {
            let name = merge::group_name(group).to_owned();
            if let Some(versions) = group.get_mut("versions").and_then(Value::as_array_mut) {
                versions.retain(|v| !excluded.contains(&(name.clone(), tree::text(v, "/version").to_owned())));
            }
        }
        groups.retain(|group| !tree::list(group, "/versions").is_empty());
        groups
    }
}

/// Peer API servers and the resources that they serve.
pub struct Peers {
    id: String,
    /// Address of this server for its peers.
    address: (String, u16),
    store: Store,
    reader: Arc<dyn Reader>,
    rows: Rows,
    aggregator: Arc<Aggregator>,
    backend: Backend,
    /// By identity.
    said: ArcSwap<BTreeMap<String, PeerResources>>,
    /// Group versions of definitions and API services, with the time they were seen last.
    made: Mutex<HashMap<GroupVersion, Instant>>,
    rerouted: metrics::CounterVec,
}

/// Reads and checks the flags; the address others are told where this server is found.
fn advertised(flags: &FlagSet, own: (String, u16)) -> Result<Option<(String, u16)>, PeersError> {
    let given = |flag: &str| flags.string(flag);
    if !flags.enabled(GATE) {
        let mut flags = vec!["peer-ca-file", "peer-advertise-ip", "peer-advertise-port"];
        flags.retain(|flag| !given(flag).is_empty());
        return if flags.is_empty() { Ok(None) } else { Err(PeersError::NeedGate(flags)) };
    }
    if !flags.enabled("APIServerIdentity") {
        return Err(PeersError::NoIdentity);
    }
    for (flag, said) in [("proxy-client-cert-file", "proxy-cert-file"), ("proxy-client-key-file", "proxy-key-file")] {
        if given(flag).is_empty() {
            return Err(PeersError::NoFile(said));
        }
    }
    let (host, port) = (given("peer-advertise-ip"), given("peer-advertise-port"));
    if host.is_empty() || port.is_empty() {
        return Ok(Some(own));
    }
    match port.parse() {
        Ok(port) => Ok(Some((host, port))),
        Err(_) => Err(PeersError::Port(port)),
    }
}

impl Peers {
    /// From the flags; `None` where others are not asked.
    ///
    /// # Errors
    /// Flags that contradict one another, and certificates that cannot be used.
    pub fn from_flags(
        cx: &ServerContext,
        aggregator: &Arc<Aggregator>,
        store: Store,
    ) -> Result<Option<Arc<Self>>, PeersError> {
        let own = (cx.advertise_address.to_string(), cx.secure_port);
        let Some(address) = advertised(&cx.flags, own)? else { return Ok(None) };
        Ok(Some(Arc::new(Self {
            id: identity::server_id(),
            address,
            store,
            reader: cx.reader.clone(),
            rows: cx.rows.clone(),
            backend: aggregator.to_peers(&cx.flags.string("peer-ca-file"))?,
            aggregator: aggregator.clone(),
            said: ArcSwap::default(),
            made: Mutex::default(),
            rerouted: metrics::counter(
                "apiserver_rerouted_request_total",
                "[ALPHA] Number of requests proxied to a peer kube-apiserver because this one cannot serve them.",
                &["code"],
            ),
        })))
    }

    /// Tells where this server is found, and learns what others serve, until dropped.
    pub async fn run(self: Arc<Self>) {
        let tell = async {
            loop {
                let (host, port) = &self.address;
                if let Err(error) = lease::renew(&self.store, &self.id, host, *port).await {
                    tracing::warn!(%error, "Unable to update peer endpoint leases");
                }
                tokio::time::sleep(RENEW).await;
            }
        };
        tokio::join!(tell, self.learn());
    }

    /// Says that this server goes.
    pub async fn remove_lease(&self) {
        match tokio::time::timeout(Duration::from_secs(2), lease::remove(&self.store, &self.id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "Unable to remove peer endpoint leases"),
            Err(_) => tracing::warn!("Timed out removing peer endpoint leases"),
        }
    }

    /// Other servers and which of their lives it is.
    fn other_servers(&self) -> BTreeMap<String, String> {
        let leases = self.reader.list(LEASES, Some(NAMESPACE));
        let server = |lease: &Arc<Value>| {
            let name = tree::name(lease);
            let holder = tree::text(lease, "/spec/holderIdentity");
            let other = tree::label(lease, LABEL.0) == Some(LABEL.1) && name != self.id && !holder.is_empty();
            other.then(|| (name.to_owned(), holder.to_owned()))
        };
        leases.iter().filter_map(server).collect()
    }

    async fn learn(&self) {
        let mut known: Option<BTreeMap<String, String>> = None;
        let (mut failures, mut backoff) = (0, Backoff::doubling(AGAIN, LATEST));
        loop {
            let version = self.reader.version(LEASES);
            self.note_made(&self.aggregator.directory());
            let others = self.other_servers();
            let fresh = known.as_ref() != Some(&others);
            if fresh {
                failures = 0;
                backoff.reset();
            }
            if fresh || (1..=ASKED).contains(&failures) {
                let answered = self.fetch_discovery(&others).await;
                failures = if answered { 0 } else { failures + 1 };
                known = Some(others);
            }
            let pause = if failures == 0 { GRACE / 5 } else { backoff.pause() };
            tokio::select! {
                () = self.reader.changed(LEASES, version), if failures == 0 => {}
                () = tokio::time::sleep(pause) => {}
            }
            tokio::time::sleep(if failures == 0 { LOOK } else { Duration::ZERO }).await;
        }
    }

    /// Asks the others what they serve; whether all answered.
    async fn fetch_discovery(&self, others: &BTreeMap<String, String>) -> bool {
        let addresses: HashMap<String, String> = match lease::addresses(&self.store).await {
            Ok(found) => found.into_iter().collect(),
            Err(error) => {
                tracing::warn!(%error, "Failed to list the addresses of peer API servers");
                return false;
            }
        };
        let (mut all, mut answered) = (BTreeMap::new(), true);
        for id in others.keys() {
            let mut said = PeerResources::default();
            for path in ["/api", "/apis"] {
                let document = match addresses.get(id) {
                    Some(address) => self.fetch(address, path).await,
                    None => Err(PeerDiscoveryError::NoAddress),
                };
                match document {
                    Ok(document) => said.take(&document),
                    Err(why) => {
                        tracing::warn!(
                            server = id,
                            path,
                            why = why.to_string(),
                            "Failed to fetch discovery from peer API server"
                        );
                        answered = false;
                    }
                }
            }
            if !said.resources.is_empty() || !said.groups.is_empty() {
                all.insert(id.clone(), said);
            }
        }
        self.said.store(Arc::new(all));
        answered
    }

    async fn fetch(&self, address: &str, path: &str) -> Result<Value, PeerDiscoveryError> {
        let user = UserInfo {
            name: "system:apiserver".to_owned(),
            uid: "system:apiserver".to_owned(),
            groups: vec!["system:authenticated".to_owned()],
            ..UserInfo::default()
        };
        let headers = [("accept", ACCEPT), (PROXIED, "true")];
        let asked = self.aggregator.ask_peer(&self.backend, (address, path), &user, &headers, LIMIT);
        let (code, body) = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| PeerDiscoveryError::Deadline)??;
        self.rerouted.with_label_values(&[code.to_string()]).inc();
        if code != 200 {
            return Err(PeerDiscoveryError::Status(code));
        }
        Ok(serde_json::from_slice(&body)?)
    }

    /// Notes what definitions and API services make now.
    fn note_made(&self, directory: &Directory) {
        let now = Instant::now();
        let mut made = self.made.lock();
        made.retain(|_, at| now.duration_since(*at) < GRACE);
        let defined = self.rows.defined().into_iter().map(|row| (row.group.to_string(), row.version.to_string()));
        let remote = directory.remotes().map(|r| (r.service.group.clone(), r.service.version.clone()));
        made.extend(defined.chain(remote).map(|gv| (gv, now)));
    }

    fn is_served_here(&self, info: &RequestInfo) -> bool {
        self.rows.find(&info.api_group, &info.api_version, &info.resource).is_some()
            || self.aggregator.remote(&info.api_group, &info.api_version).is_some()
    }

    /// The servers that a request is for, where this one is not.
    fn elsewhere(&self, info: &RequestInfo) -> Vec<String> {
        let said = self.said.load();
        if !info.is_resource || said.is_empty() || self.is_served_here(info) {
            return Vec::new();
        }
        let gv = (info.api_group.clone(), info.api_version.clone());
        if self.made.lock().contains_key(&gv) {
            return Vec::new();
        }
        let key = (gv.0, gv.1, info.resource.clone());
        said.iter().filter(|(_, said)| said.resources.contains(&key)).map(|(id, _)| id.clone()).collect()
    }

    /// The answer of another server, where the request is for one; gives the body back where it is not.
    pub async fn answer(
        &self,
        info: &RequestInfo,
        request: &HttpRequest,
        payload: web::Payload,
        user: &UserInfo,
        audit_id: &str,
    ) -> Result<Result<HttpResponse, Status>, web::Payload> {
        let proxied = request.headers().get(PROXIED).is_some_and(|value| value.as_bytes() == b"true");
        let servers = if proxied { Vec::new() } else { self.elsewhere(info) };
        if servers.is_empty() {
            return Err(payload);
        }
        let addresses = lease::addresses(&self.store).await.unwrap_or_default();
        let addresses: Vec<String> =
            addresses.into_iter().filter(|(id, _)| servers.contains(id)).map(|(_, address)| address).collect();
        let Some(address) = addresses.choose(&mut rand::rng()) else {
            const NOWHERE: &str = "Error getting ip and port info of the remote server while proxying";
            return Ok(Err(Status::service_unavailable(NOWHERE)));
        };
        let sent = self.aggregator.pass_to_peer(&self.backend, address, request, payload, user, audit_id).await;
        let response = sent.unwrap_or_else(|why| {
            tracing::error!(why = why.to_string(), "Error while proxying request to destination apiserver");
            HttpResponse::ServiceUnavailable()
                .insert_header(("Content-Type", "text/plain; charset=utf-8"))
                .insert_header(("X-Content-Type-Options", "nosniff"))
                .body(format!("{why}\n"))
        });
        self.rerouted.with_label_values(&[response.status().as_u16().to_string()]).inc();
        Ok(Ok(response))
    }

    /// `/apis` of all servers, from that of this one; `None` where nobody else said anything.
    pub fn discovery(&self, own: &[u8]) -> Option<Vec<u8>> {
        let said = self.said.load();
        if said.is_empty() {
            return None;
        }
        let mut document = serde_json::from_slice::<Value>(own).ok()?;
        let excluded = self.made.lock().keys().cloned().collect();
        let mut all = vec![tree::list(&document, "/items").to_vec()];
        all.extend(said.values().map(|said| said.groups_but(&excluded)));
        document["items"] = merge::groups(all).into();
        let schema = proto::schema::kind("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList");
        Some(crate::negotiate::envelope(crate::negotiate::Format::Json, false, schema, &document))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flags_are_checked() {
        let own = || ("10.0.0.1".to_owned(), 6443);
        let flags = |args: &[&str]| FlagSet::of("kube-apiserver", args).expect("flags");
        let told = |args: &[&str]| advertised(&flags(args), own()).map_err(|e| e.to_string());
        let on = "--feature-gates=UnknownVersionInteroperabilityProxy=true";
        let pair = ["--proxy-client-cert-file=c", "--proxy-client-key-file=k"];
        let with = |more: &[&'static str]| [&[on], &pair[..], more].concat();
        assert_eq!(told(&[]), Ok(None));
        let off = "--peer-ca-file requires UnknownVersionInteroperabilityProxy feature to be turned on";
        assert_eq!(told(&["--peer-ca-file=f"]), Err(off.to_owned()));
        let unpaired = "error building peer proxy handler, proxy-cert-file not specified";
        assert_eq!(told(&[on]), Err(unpaired.to_owned()));
        assert_eq!(told(&with(&[])), Ok(Some(own())));
        assert_eq!(told(&with(&["--peer-advertise-ip=10.0.0.9"])), Ok(Some(own())));
        let other = with(&["--peer-advertise-ip=10.0.0.9", "--peer-advertise-port=1234"]);
        assert_eq!(told(&other), Ok(Some(("10.0.0.9".to_owned(), 1234))));
        let nobody = "--feature-gates=UnknownVersionInteroperabilityProxy=true,APIServerIdentity=false";
        assert!(told(&[nobody]).is_err());
    }

    #[test]
    fn discovery_of_peers_is_parsed() {
        let mut said = PeerResources::default();
        let resources = json!([{"resource": "pods"}, {"resource": "secrets"}]);
        said.take(&json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": resources}]}]}));
        let versions = json!([{"version": "v2", "resources": [{"resource": "widgets"}]}, {"version": "v1"}]);
        said.take(&json!({"items": [{"metadata": {"name": "ex.com"}, "versions": versions}]}));
        let has = |group: &str, version: &str, plural: &str| {
            said.resources.contains(&(group.to_owned(), version.to_owned(), plural.to_owned()))
        };
        assert!(has("", "v1", "pods") && has("ex.com", "v2", "widgets") && !has("ex.com", "v1", "widgets"));
        let left = |excluded: &[&str]| {
            let excluded = excluded.iter().map(|v| ("ex.com".to_owned(), (*v).to_owned())).collect();
            let groups = said.groups_but(&excluded);
            groups.iter().map(|g| tree::list(g, "/versions").len()).collect::<Vec<_>>()
        };
        assert_eq!((left(&[]), left(&["v2"]), left(&["v1", "v2"])), (vec![2], vec![1], vec![]));
    }
}
