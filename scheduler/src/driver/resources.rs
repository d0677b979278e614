//! `/metrics/resources`: what each pod asks for and may use, in the form and under the names that dashboards know.
//! Answers for upstream's `pkg/scheduler/metrics/resources`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::{Data, ServiceConfig, get};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use proto::quantity::Quantity as Amount;
use shared::client::typed;
use shared::types::is_sidecar;

use super::explain::ExplainInputs;

/// Pods per page of a list.
const PAGE: u32 = 500;
/// Path of the endpoint.
const PATH: &str = "/metrics/resources";

const FAMILIES: [(&str, &str); 2] = [
    (
        "kube_pod_resource_limit",
        "[STABLE] Resources limit for workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.",
    ),
    (
        "kube_pod_resource_request",
        "[STABLE] Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.",
    ),
];

type Amounts = BTreeMap<String, Amount>;

/// Adds the path.
pub(super) fn routes(config: &mut ServiceConfig, source: Arc<ExplainInputs>) {
    config.route(PATH, get().to(move || resources(Data::from(Arc::clone(&source)))));
}

/// The scheduler itself keeps less of a pod than is told here, so the pods are read page by page when somebody asks.
async fn resources(source: Data<ExplainInputs>) -> HttpResponse {
    let Some(client) = source.client.get() else { return HttpResponse::ServiceUnavailable().finish() };
    let mut lines = Lines::default();
    let mut page = ListParams { limit: Some(PAGE), ..ListParams::default() };
    loop {
        let list = match typed::page::<Pod>(client, &page).await {
            Ok(list) => list,
            Err(error) => return HttpResponse::ServiceUnavailable().body(format!("{error}\n")),
        };
        lines.add(&list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => break,
        }
    }
    HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(lines.text())
}

/// Lines by family.
#[derive(Default)]
struct Lines([Vec<String>; FAMILIES.len()]);

impl Lines {
    fn add(&mut self, pods: &[Pod]) {
        for (lines, (family, _)) in self.0.iter_mut().zip(FAMILIES) {
            for pod in pods.iter().filter(|p| !shared::types::is_pod_terminal(p)) {
                let Some(spec) = &pod.spec else { continue };
                let amounts = total(spec, family.ends_with("limit"));
                lines.extend(amounts.iter().filter_map(|(name, amount)| line(family, pod, spec, name, amount)));
            }
        }
    }

    fn text(self) -> String {
        let mut out = String::new();
        for (mut lines, (family, help)) in self.0.into_iter().zip(FAMILIES).filter(|(lines, _)| !lines.is_empty()) {
            lines.sort();
            // Writing to a text cannot fail.
            let _ = write!(out, "# HELP {family} {help}\n# TYPE {family} gauge\n{}\n", lines.join("\n"));
        }
        out
    }
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn line(family: &str, pod: &Pod, spec: &PodSpec, resource: &str, amount: &Amount) -> Option<String> {
    let (unit, value) = match resource {
        "cpu" => ("cores", amount.as_f64()),
        "memory" | "storage" | "ephemeral-storage" => ("bytes", amount.as_f64()),
        name if name.starts_with("hugepages-") => ("bytes", amount.as_f64()),
        name if name.contains('/') || name.starts_with("attachable-volumes-") => ("integer", amount.as_f64()),
        _ => return None,
    };
    if amount.is_zero() {
        return None;
    }
    let meta = &pod.metadata;
    let of = |t: Option<&String>| quoted(t.map(String::as_str).unwrap_or_default());
    let priority = spec.priority.map(|p| p.to_string()).unwrap_or_default();
    Some(format!(
        "{family}{{namespace=\"{}\",node=\"{}\",pod=\"{}\",priority=\"{priority}\",resource=\"{}\",scheduler=\"{}\",unit=\"{unit}\"}} {value}",
        of(meta.namespace.as_ref()),
        of(spec.node_name.as_ref()),
        of(meta.name.as_ref()),
        quoted(resource),
        of(spec.scheduler_name.as_ref()),
    ))
}

fn of(container: &Container, limit: bool) -> Amounts {
    let resources = container.resources.as_ref();
    let list = resources.and_then(|r| if limit { r.limits.as_ref() } else { r.requests.as_ref() });
    read(list)
}

fn read(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    let parsed = |q: &Quantity| Amount::parse(&q.0).unwrap_or_default();
    list.into_iter().flatten().map(|(name, q)| (name.clone(), parsed(q))).collect()
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        to.entry(name.clone()).or_default().add(amount);
    }
}

fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let have = to.entry(name.clone()).or_default();
        if *have < *amount {
            *have = amount.clone();
        }
    }
}

/// Containers and sidecars together, or the most that starting up takes; what the pod as a whole says goes first.
fn total(spec: &PodSpec, limit: bool) -> Amounts {
    let mut sum = Amounts::new();
    for container in &spec.containers {
        add(&mut sum, &of(container, limit));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut wanted = of(container, limit);
        if is_sidecar(container) {
            add(&mut sum, &wanted);
            add(&mut sidecars, &wanted);
            wanted = sidecars.clone();
        } else {
            add(&mut wanted, &sidecars);
        }
        raise(&mut peak, &wanted);
    }
    raise(&mut sum, &peak);
    let whole = spec.resources.as_ref();
    let list = whole.and_then(|r| if limit { r.limits.as_ref() } else { r.requests.as_ref() });
    sum.extend(read(list));
    let overhead = read(spec.overhead.as_ref());
    // Without a limit there is none, whatever comes on top.
    let on_top = overhead.iter().filter(|(name, _)| !limit || sum.contains_key(*name));
    let on_top: Amounts = on_top.map(|(name, amount)| (name.clone(), amount.clone())).collect();
    add(&mut sum, &on_top);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;
    use serde_json::json;

    fn text(pods: &[Pod]) -> String {
        let mut lines = Lines::default();
        lines.add(pods);
        lines.text()
    }

    #[test]
    fn what_is_told() {
        let p = pod("p").cpu("250m").memory("64Mi").priority(7).on("n").set(
            "/spec",
            "initContainers",
            json!([{"name": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"example.com/gpu": "2"}}}]),
        );
        let text = text(&[p.api()]);
        let labels = |resource: &str, unit: &str| {
            format!(
                "{{namespace=\"default\",node=\"n\",pod=\"p\",priority=\"7\",resource=\"{resource}\",scheduler=\"\",unit=\"{unit}\"}}"
            )
        };
        for want in [
            format!("kube_pod_resource_request{} 1\n", labels("cpu", "cores")),
            format!("kube_pod_resource_request{} 67108864\n", labels("memory", "bytes")),
            format!("kube_pod_resource_limit{} 2\n", labels("example.com/gpu", "integer")),
            "# TYPE kube_pod_resource_limit gauge\n".to_owned(),
        ] {
            assert!(text.contains(&want), "{want} not in\n{text}");
        }
        assert_eq!(super::Lines::default().text(), "");
    }
}
