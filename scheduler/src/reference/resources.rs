//! Requests of a pod, whether they are left on a node, and how full the node would be.

use serde_json::{Value, json};

use super::{BEST, World, int, list, text};

/// Amount of a container that names no CPU (in thousandths) or memory (in bytes), where fullness is compared.
fn stand_in(resource: &str) -> i64 {
    match resource {
        "cpu" => 100,
        "memory" => 200 * 1024 * 1024,
        _ => 0,
    }
}

/// An amount: thousandths for CPU, whole units for the rest.
fn amount(resource: &str, v: &Value) -> i64 {
    let Some(written) = v.as_str() else { return 0 };
    let digits: String = written.chars().take_while(|c| c.is_ascii_digit()).collect();
    let n: i64 = digits.parse().expect("a number");
    let milli = resource == "cpu";
    match &written[digits.len()..] {
        "" => n * if milli { 1000 } else { 1 },
        "m" => {
            if milli {
                n
            } else {
                (n + 999) / 1000
            }
        }
        "Mi" => n << 20,
        "Gi" => n << 30,
        other => unreachable!("no test writes {other}"),
    }
}

/// Returns the request of one container: the most of what is written, granted and in use during a resize.
fn container(pod: &Value, c: &Value, resource: &str, filled: bool) -> i64 {
    let ask = &c["resources"]["requests"][resource];
    let statuses = list(&pod["status"]["containerStatuses"]).chain(list(&pod["status"]["initContainerStatuses"]));
    let status = statuses.filter(|s| s["name"] == c["name"]).find(|s| !s["resources"].is_null());
    let plain_init =
        list(&pod["spec"]["initContainers"]).any(|i| i["name"] == c["name"] && i["restartPolicy"] != "Always");
    let refused = list(&pod["status"]["conditions"])
        .any(|c| c["type"] == "PodResizePending" && c["status"] == "True" && c["reason"] == "Infeasible");
    let mut said = vec![ask];
    if let Some(s) = status.filter(|_| !plain_init) {
        if refused {
            said.clear();
        }
        said.extend([&s["resources"]["requests"][resource], &s["allocatedResources"][resource]]);
    }
    let unsaid = if filled { stand_in(resource) } else { 0 };
    said.iter().filter(|v| !v.is_null()).map(|v| amount(resource, v)).max().unwrap_or(unsaid)
}

/// Returns the request of a pod: all containers and sidecars at once, or the hungriest moment before, and the overhead;
/// an amount for the pod as a whole takes the place of the containers'.
fn asked(pod: &Value, resource: &str, filled: bool) -> i64 {
    let whole = &pod["spec"]["resources"]["requests"][resource];
    let of = |c: &Value| container(pod, c, resource, filled);
    let mut sidecars = 0;
    let mut before = 0;
    for init in list(&pod["spec"]["initContainers"]) {
        if init["restartPolicy"] == "Always" {
            sidecars += of(init);
            before = before.max(sidecars);
        } else {
            before = before.max(sidecars + of(init));
        }
    }
    let running: i64 = sidecars + list(&pod["spec"]["containers"]).map(of).sum::<i64>();
    let all = if whole.is_null() { running.max(before) } else { amount(resource, whole) };
    all + amount(resource, &pod["spec"]["overhead"][resource])
}

fn taken(world: &World, node: &Value, resource: &str, filled: bool) -> i64 {
    world.pods_on(node).map(|p| asked(p, resource, filled)).sum()
}

/// Enough of everything is left, and room for one more pod.
pub(super) fn fits(world: &World, pod: &Value, node: &Value) -> bool {
    let has = |resource: &str| amount(resource, &node["status"]["allocatable"][resource]);
    let room = |resource: &&str| {
        let wanted = asked(pod, resource, false);
        wanted == 0 || wanted <= has(resource) - taken(world, node, resource, false)
    };
    i64::try_from(world.pods_on(node).count()).expect("few") < has("pods")
        && ["cpu", "memory", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi"].iter().all(room)
}

/// Arguments of NodeResourcesFit and NodeResourcesBalancedAllocation.
#[derive(Debug, Clone)]
pub(super) struct Scoring {
    pub(super) strategy: &'static str,
    /// Resources with their weights.
    pub(super) fit: Vec<(&'static str, i64)>,
    pub(super) balance: Vec<&'static str>,
    /// Utilisation and score, of the third strategy.
    pub(super) shape: Vec<(i64, i64)>,
}

impl Scoring {
    /// Formats the strategy as the configuration has it.
    pub(super) fn arguments(&self) -> Value {
        let resources: Vec<Value> = self.fit.iter().map(|(n, w)| json!({"name": n, "weight": w})).collect();
        let shape: Vec<Value> = self.shape.iter().map(|(u, s)| json!({"utilization": u, "score": s})).collect();
        let balanced: Vec<Value> = self.balance.iter().map(|n| json!({"name": n, "weight": 1})).collect();
        let mut strategy = json!({"type": self.strategy, "resources": resources});
        if self.strategy == "RequestedToCapacityRatio" {
            strategy["requestedToCapacityRatio"] = json!({"shape": shape});
        }
        json!([
            {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}},
            {"name": "NodeResourcesBalancedAllocation", "args": {"resources": balanced}},
        ])
    }

    /// Returns the allocatable and the taken amount; nothing for an extended resource that the pod does not ask for.
    fn filling(world: &World, pod: &Value, node: &Value, resource: &str, filled: bool) -> Option<(i64, i64)> {
        let wanted = asked(pod, resource, filled);
        if resource.contains('/') && wanted == 0 {
            return None;
        }
        let has = amount(resource, &node["status"]["allocatable"][resource]);
        (has > 0).then(|| (has, wanted + taken(world, node, resource, filled)))
    }

    /// The mean over the resources, by weight, of how good their filling is.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
    pub(super) fn fit(&self, world: &World, pod: &Value, node: &Value) -> i64 {
        let mut weighed = Vec::new();
        for (resource, weight) in &self.fit {
            let Some((has, taken)) = Self::filling(world, pod, node, resource, true) else { continue };
            let score = match self.strategy {
                "LeastAllocated" => (has - taken.min(has)) * BEST / has,
                "MostAllocated" => taken.min(has) * BEST / has,
                _ => self.along_shape(taken.min(has) * 100 / has),
            };
            if self.strategy != "RequestedToCapacityRatio" || score > 0 {
                weighed.push((score, *weight));
            }
        }
        let weights: i64 = weighed.iter().map(|(_, w)| w).sum();
        let sum: i64 = weighed.iter().map(|(s, w)| s * w).sum();
        match (weights, self.strategy) {
            (0, _) => 0,
            (_, "RequestedToCapacityRatio") => (sum as f64 / weights as f64).round() as i64,
            _ => sum / weights,
        }
    }

    /// Straight lines between the points, ten of whose scores are a hundred.
    fn along_shape(&self, used: i64) -> i64 {
        let points: Vec<(i64, i64)> = self.shape.iter().map(|(u, s)| (*u, s * 10)).collect();
        let (first, last) = (points[0], points[points.len() - 1]);
        if used <= first.0 {
            return first.1;
        }
        let line = points.windows(2).find(|w| w[0].0 < used && used <= w[1].0);
        line.map_or(last.1, |w| w[0].1 + (w[1].1 - w[0].1) * (used - w[0].0) / (w[1].0 - w[0].0))
    }

    /// 100 less the standard deviation of the parts taken; 0 for all nodes when the pod asks for none of it.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's formula in floats")]
    pub(super) fn balance(&self, world: &World, pod: &Value, node: &Value) -> i64 {
        if self.balance.iter().all(|r| asked(pod, r, false) == 0) {
            return 0;
        }
        let filling = |r: &&str| Self::filling(world, pod, node, r, false);
        let part = |(has, taken): (i64, i64)| (taken as f64 / has as f64).min(1.0);
        let parts: Vec<f64> = self.balance.iter().filter_map(filling).map(part).collect();
        let n = parts.len() as f64;
        let deviation = match parts.as_slice() {
            [] | [_] => 0.0,
            [a, b] => ((a - b) / 2.0).abs(),
            all => {
                let mean = all.iter().sum::<f64>() / n;
                (all.iter().map(|p| (p - mean) * (p - mean)).sum::<f64>() / n).sqrt()
            }
        };
        ((1.0 - deviation) * 100.0) as i64
    }
}

/// Bytes that a volume claim, a volume or a capacity names.
pub(super) fn storage(v: &Value) -> i64 {
    if text(v).is_empty() { int(v) } else { amount("storage", v) }
}
