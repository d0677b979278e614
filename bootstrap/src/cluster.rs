//! The objects that a new cluster needs inside, once its API server answers: the phases `bootstrap-token`, `upload-config` and
//! `addon` of `kubeadm init`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use pki::authority::public_key_hash;
use pki::kubeconfig;
use pki::secret::{Data, text};
use serde_json::{Value, json};
use shared::client::path;

use crate::objects::{self, ObjectClient};
use crate::plan::{self, Plan};
use crate::{certificates, manifests, token};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(500);
/// Answers in a row, each over a connection of its own, after which every API server has given one: a Service leads each
/// connection to any of them, and of two that are asked so often one is left out once in 32,768 times.
const ANSWERS: u32 = 16;
/// Limit of one question.
const QUESTION: Duration = Duration::from_secs(10);

/// The work, besides [`Plan`].
pub struct Task<'a> {
    /// Folder of manifests to apply.
    pub manifests: Option<&'a Path>,
    /// Validity of a token; none makes no token.
    pub token: Option<Duration>,
    /// Addresses of the API server for pods of the new cluster; empty takes those of the Service.
    pub addresses: Vec<IpAddr>,
    /// The moment at which it must be done.
    pub deadline: Instant,
    /// Labels of Secrets.
    pub labels: BTreeMap<String, String>,
}

/// Host and addresses of the control plane's Service, by its own account.
///
/// A load balancer's name is an endpoint, but no address.
#[must_use]
pub fn addresses_of(service: &Value) -> Option<(String, Vec<IpAddr>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned).filter(|text| !text.is_empty() && text != "None");
    if service["spec"]["type"] == "LoadBalancer" {
        let ingress = service.pointer("/status/loadBalancer/ingress/0")?;
        let host = text(&ingress["ip"]).or_else(|| text(&ingress["hostname"]))?;
        let address = host.parse().ok().into_iter().collect();
        return Some((host, address));
    }
    let address = text(&service["spec"]["clusterIP"])?;
    let parsed = address.parse().ok().into_iter().collect();
    Some((address, parsed))
}

/// Puts the Service's address into a plan without a host; the addresses of the API server for pods of the new cluster,
/// none while the Service has no address. The addresses of any other name are for whoever gave it to say.
///
/// # Errors
/// When the Service cannot be read.
pub async fn locate(host: &ObjectClient, plan: &mut Plan) -> Result<Option<Vec<IpAddr>>> {
    let named = plan::host(&plan.endpoint).to_owned();
    if !named.is_empty() && named != plan::host(&plan.internal) {
        return Ok(Some(named.parse().ok().into_iter().collect()));
    }
    let service = path::join(&path::collection("v1", Some(&plan.namespace), "services"), &plan.name);
    let Some((name, addresses)) = host.get(&service).await?.as_ref().and_then(addresses_of) else { return Ok(None) };
    if named.is_empty() {
        let port = plan.endpoint.trim_start_matches(':');
        plan.endpoint = if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") };
    }
    Ok(Some(addresses))
}

/// Locates the address as [`locate`] does, and waits for it.
///
/// # Errors
/// When there is none in time.
pub async fn await_address(host: &ObjectClient, plan: &mut Plan, deadline: Instant) -> Result<Vec<IpAddr>> {
    loop {
        if let Some(addresses) = locate(host, plan).await? {
            return Ok(addresses);
        }
        if certificates::left(deadline).is_zero() {
            bail!("Service {}/{} has no address; is there a load balancer?", plan.namespace, plan.name);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until every API server is ready. `ask` puts the question over a new connection.
///
/// # Errors
/// The last refusal, where not all are ready by the deadline.
pub async fn wait(deadline: Instant, mut ask: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let mut answers = 0;
    while answers < ANSWERS {
        let asked = tokio::time::timeout(QUESTION, ask()).await;
        let error = match asked {
            Ok(Ok(())) => {
                answers += 1;
                continue;
            }
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("no answer within {} s", QUESTION.as_secs()),
        };
        if certificates::left(deadline).is_zero() {
            return Err(error).context("kube-apiserver is not ready");
        }
        answers = 0;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Fills the new cluster, and writes the Secret for nodes that join into its host.
///
/// # Errors
/// When the API server refuses something.
pub async fn fill(host: &mut ObjectClient, tenant: &mut ObjectClient, plan: &Plan, task: &Task<'_>) -> Result<()> {
    let ca = text(&host.secret(&plan.namespace, &plan.secret("ca")).await?.data, "ca.crt")?;
    if let Some(folder) = task.manifests {
        let dns = plan::service(plan.services, plan::DNS)?.to_string();
        let (tunnel, port) = plan.agents_endpoint().unwrap_or_default();
        let values = [
            ("CONTROL_PLANE_ENDPOINT", plan.endpoint.as_str()),
            ("CLUSTER_DNS", dns.as_str()),
            ("KONNECTIVITY_HOST", tunnel),
            ("KONNECTIVITY_PORT", port),
        ];
        for object in manifests::read(folder, &values)? {
            tenant.apply(&object).await?;
        }
    }
    for object in endpoints(plan, &task.addresses) {
        tenant.apply(&object).await?;
    }
    tenant.apply(&cluster_info(plan, &ca)?).await?;
    println!("the cluster has its roles, configuration and endpoints");
    let Some(ttl) = task.token else { return Ok(()) };
    let name = plan.secret("join");
    let known = host.secret(&plan.namespace, &name).await?.data;
    let token = valid_token(tenant, &known, Timestamp::now()).await?;
    if token.is_none() {
        println!("Secret {name}: made a new token");
    }
    let (token, fresh) = token.map_or_else(|| (token::generate(), true), |token| (token, false));
    if fresh {
        tenant.apply(&token::secret(&token, Timestamp::now(), ttl)?).await?;
    }
    let data = join(plan, &ca, &token)?;
    host.apply(&objects::secret(&plan.namespace, &name, &task.labels, &data)).await
}

/// The token of the Secret for nodes that join, if the new cluster still takes it.
async fn valid_token(tenant: &ObjectClient, known: &Data, now: Timestamp) -> Result<Option<String>> {
    let Ok(token) = text(known, "token") else { return Ok(None) };
    let secret = tenant.secret("kube-system", &token::secret_name(&token)?).await?.data;
    Ok(Some(token).filter(|_| is_valid(&secret, now)))
}

fn is_valid(secret: &Data, now: Timestamp) -> bool {
    let Ok(end) = text(secret, "expiration") else { return secret.contains_key("token-id") };
    end.parse::<Timestamp>().is_ok_and(|end| end > now)
}

/// The endpoints of the Service `kubernetes`: all API servers are behind one address, which none of them knows.
fn endpoints(plan: &Plan, addresses: &[IpAddr]) -> Vec<Value> {
    let Some(first) = addresses.first() else { return Vec::new() };
    let port = plan.endpoint.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).unwrap_or(6443);
    let family = addresses.iter().filter(|address| address.is_ipv4() == first.is_ipv4());
    let family: Vec<String> = family.map(IpAddr::to_string).collect();
    let kind = if first.is_ipv4() { "IPv4" } else { "IPv6" };
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let metadata = |labels: Value| json!({"name": "kubernetes", "namespace": "default", "labels": labels});
    let addresses: Vec<Value> = family.iter().map(|address| json!({"ip": address})).collect();
    vec![
        json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": metadata(json!({"endpointslice.kubernetes.io/skip-mirror": "true"})),
            "subsets": [{"addresses": addresses, "ports": ports}],
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata(json!({"kubernetes.io/service-name": "kubernetes"})),
            "addressType": kind,
            "endpoints": [{"addresses": family, "conditions": {"ready": true}}],
            "ports": ports,
        }),
    ]
}

/// The ConfigMap that a node with nothing but a token reads; bootstrapsigner signs it.
fn cluster_info(plan: &Plan, ca: &str) -> Result<Value> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": kubeconfig::cluster(ca, &format!("https://{}", plan.endpoint))}],
    });
    Ok(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": serde_json::to_string_pretty(&config)?},
    }))
}

fn join(plan: &Plan, ca: &str, token: &str) -> Result<Data> {
    let server = format!("https://{}", plan.endpoint);
    let config = kubeconfig::build(ca, &server, "kubelet-bootstrap", &json!({"token": token}));
    let hash = public_key_hash(ca)?;
    let command = format!("kubeadm join {} --token {token} --discovery-token-ca-cert-hash {hash}\n", plan.endpoint);
    Ok(Data::from([
        ("token".into(), token.into()),
        ("ca.crt".into(), ca.into()),
        ("ca-cert-hash".into(), hash.into_bytes()),
        ("endpoint".into(), plan.endpoint.clone().into_bytes()),
        ("bootstrap-kubelet.conf".into(), serde_json::to_vec_pretty(&config)?),
        ("kubeadm-join".into(), command.into_bytes()),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_tell_their_addresses() {
        let cluster_ip = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.96.3.4"}});
        assert_eq!(addresses_of(&cluster_ip).expect("an address").0, "10.96.3.4");
        let pending =
            json!({"spec": {"type": "LoadBalancer", "clusterIP": "10.96.3.4"}, "status": {"loadBalancer": {}}});
        assert_eq!(addresses_of(&pending), None);
        let mut given = pending.clone();
        given["status"]["loadBalancer"]["ingress"] = json!([{"ip": "192.0.2.7"}]);
        assert_eq!(addresses_of(&given).expect("an address").1, ["192.0.2.7".parse::<IpAddr>().expect("an address")]);
        given["status"]["loadBalancer"]["ingress"] = json!([{"hostname": "lb.example"}]);
        assert_eq!(addresses_of(&given), Some(("lb.example".to_owned(), Vec::new())));
    }

    /// Of two servers behind one Service one has the new certificate a while before the other.
    #[tokio::test(flavor = "current_thread")]
    async fn one_of_two_servers_is_not_all() {
        let mut asked = 0;
        let slow_until = 5;
        let ask = async || {
            asked += 1;
            if asked % 2 == 0 && asked <= slow_until { anyhow::bail!("a certificate of before") } else { Ok(()) }
        };
        wait(Instant::now() + Duration::from_secs(60), ask).await.expect("they are ready");
        assert_eq!(asked, 4 + ANSWERS);
        let refused = wait(Instant::now(), async || anyhow::bail!("no")).await.expect_err("it is never ready");
        assert_eq!(format!("{refused:#}"), "kube-apiserver is not ready: no");
    }

    #[test]
    fn expired_tokens_are_not_handed_out() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let with = |end: &str| Data::from([("token-id".into(), b"abcdef".to_vec()), ("expiration".into(), end.into())]);
        assert!(is_valid(&with("2026-01-01T00:00:01Z"), now));
        for end in ["2026-01-01T00:00:00Z", "2025-12-31T00:00:00Z", "soon"] {
            assert!(!is_valid(&with(end), now), "{end}");
        }
        assert!(is_valid(&Data::from([("token-id".into(), b"abcdef".to_vec())]), now));
        assert!(!is_valid(&Data::new(), now));
    }

    #[test]
    fn endpoints_are_of_one_family_and_the_port_of_the_endpoint() {
        let plan = Plan {
            name: "t1".into(),
            namespace: "tenants".into(),
            host_domain: "cluster.local".into(),
            endpoint: "10.89.0.11:30443".into(),
            internal: String::new(),
            services: "10.96.0.0/12".parse().expect("a range"),
            dns_domain: "cluster.local".into(),
            names: Vec::new(),
            konnectivity: None,
            validity: Duration::from_hours(1),
        };
        let addresses: Vec<IpAddr> =
            ["10.89.0.11", "fd00::1", "10.89.0.12"].iter().map(|text| text.parse().expect("an address")).collect();
        let made = endpoints(&plan, &addresses);
        assert_eq!(made[1]["endpoints"][0]["addresses"], json!(["10.89.0.11", "10.89.0.12"]));
        assert_eq!(made[1]["ports"][0]["port"], 30443);
        assert!(endpoints(&plan, &[]).is_empty());
    }
}
