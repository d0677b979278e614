//! Requests of the claims to allocate, read once per pod. Answers for upstream's `validateDeviceRequest`.

use std::sync::Arc;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceRequest, DeviceSelector, DeviceTaint, DeviceToleration, ResourceClaim,
};

use super::claims::full_name;
use crate::framework::{Features, Listers, Status};
use crate::model::devices::{Amounts, Device, quantity};

/// The most devices one claim gets.
pub(super) const MAX_RESULTS: usize = 32;
/// The most alternatives one request has.
pub(super) const MAX_ALTERNATIVES: i64 = 8;

/// Number of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// So many.
    Exactly(usize),
    /// All that match.
    All,
}

/// A request, or one of its alternatives.
#[derive(Debug, Clone)]
pub(super) struct Want {
    /// Name of the request or, after a slash, of the alternative too.
    pub(super) name: String,
    /// Name of the alternative alone, or of the request.
    pub(super) short: String,
    pub(super) class: Arc<DeviceClass>,
    /// Expressions of the request.
    pub(super) selectors: Vec<String>,
    pub(super) amount: Amount,
    /// Amounts of capacities.
    pub(super) capacity: Amounts,
    /// Of taints; empty where taints are nothing.
    pub(super) tolerations: Vec<DeviceToleration>,
    pub(super) admin: bool,
}

impl Want {
    /// Reports whether the request tolerates all taints of a device.
    pub(super) fn tolerates(&self, device: &Device) -> bool {
        device.taints.iter().all(|taint| self.tolerations.iter().any(|t| tolerates(t, taint)))
    }
}

fn tolerates(t: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let any = |wanted: &Option<String>, have: &str| wanted.as_deref().is_none_or(|w| w.is_empty() || w == have);
    if !any(&t.effect, &taint.effect) || !any(&t.key, &taint.key) {
        return false;
    }
    match t.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => t.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        operator => operator == "Exists",
    }
}

/// A request: its alternatives, best first.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) name: String,
    pub(super) alternatives: Vec<Want>,
}

/// All devices of these requests (of all requests if none is named) share an attribute's value, or no two of them do.
#[derive(Debug, Clone)]
pub(super) struct Constraint {
    requests: Vec<String>,
    pub(super) distinct: bool,
    /// Domain and name.
    pub(super) attribute: (String, String),
}

impl Constraint {
    pub(super) fn covers(&self, request: &str, want: &Want) -> bool {
        self.requests.is_empty() || self.requests.iter().any(|r| r == request || *r == want.name)
    }
}

/// A claim that wants devices.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// Position among the pod's claims.
    pub(super) at: usize,
    pub(super) claim: Arc<ResourceClaim>,
    pub(super) requests: Vec<Request>,
    pub(super) constraints: Vec<Constraint>,
}

/// The parts that requests and alternatives have in common.
struct RequestParts<'a> {
    name: String,
    short: &'a str,
    class: &'a str,
    selectors: Option<&'a Vec<DeviceSelector>>,
    mode: Option<&'a str>,
    count: Option<i64>,
    capacity: Option<&'a CapacityRequirements>,
    tolerations: Option<&'a Vec<DeviceToleration>>,
    admin: bool,
}

/// Reads a claim, which comes with its position among the pod's.
///
/// # Errors
/// Reason why the claim can be allocated on no node.
pub(super) fn read(
    listers: &dyn Listers,
    (at, claim): (usize, &Arc<ResourceClaim>),
    features: Features,
) -> Result<Wanted, Status> {
    let devices = claim.spec.devices.as_ref();
    let mut requests = Vec::new();
    for request in devices.and_then(|d| d.requests.as_ref()).into_iter().flatten() {
        requests.push(read_request(listers, claim, request, features)?);
    }
    let mut constraints = Vec::new();
    for (i, c) in devices.and_then(|d| d.constraints.as_ref()).into_iter().flatten().enumerate() {
        let distinct = c.distinct_attribute.as_ref().filter(|_| features.consumable_capacity);
        let attribute = c.match_attribute.as_ref().or(distinct).and_then(|a| a.split_once('/')).ok_or_else(|| {
            let name = full_name(claim);
            Status::error(format!("claim {name}, constraint #{i}: empty constraint (unsupported constraint type?)"))
        })?;
        constraints.push(Constraint {
            requests: c.requests.clone().unwrap_or_default(),
            distinct: c.match_attribute.is_none(),
            attribute: (attribute.0.to_owned(), attribute.1.to_owned()),
        });
    }
    Ok(Wanted { at, claim: Arc::clone(claim), requests, constraints })
}

fn read_request(
    listers: &dyn Listers,
    claim: &ResourceClaim,
    request: &DeviceRequest,
    features: Features,
) -> Result<Request, Status> {
    let name = &request.name;
    let has_list = request.first_available.as_ref().is_some_and(|list| !list.is_empty());
    if request.exactly.is_none() && has_list && !features.prioritized_list {
        let why = "has subrequests, but the DRAPrioritizedList feature is disabled";
        return Err(Status::unresolvable(format!("resource claim {}, request {name}: {why}", full_name(claim))));
    }
    if request.exactly.as_ref().is_some_and(|exactly| exactly.admin_access.is_some()) && !features.admin_access {
        let why = "admin access is requested, but the feature is disabled";
        return Err(Status::error(format!("claim {}, request {name}: {why}", full_name(claim))));
    }
    let mut alternatives = Vec::new();
    if let Some(exactly) = &request.exactly {
        alternatives.push(RequestParts {
            name: name.clone(),
            short: name,
            class: &exactly.device_class_name,
            selectors: exactly.selectors.as_ref(),
            mode: exactly.allocation_mode.as_deref(),
            count: exactly.count,
            capacity: exactly.capacity.as_ref(),
            tolerations: exactly.tolerations.as_ref(),
            admin: exactly.admin_access == Some(true),
        });
    }
    for sub in request.first_available.iter().flatten() {
        alternatives.push(RequestParts {
            name: format!("{name}/{}", sub.name),
            short: &sub.name,
            class: &sub.device_class_name,
            selectors: sub.selectors.as_ref(),
            mode: sub.allocation_mode.as_deref(),
            count: sub.count,
            capacity: sub.capacity.as_ref(),
            tolerations: sub.tolerations.as_ref(),
            admin: false,
        });
    }
    if alternatives.is_empty() {
        let text = format!("resource claim {}, request {name}: unknown request type", full_name(claim));
        return Err(Status::unresolvable(text));
    }
    if let Some(parts) = alternatives.iter().find(|p| p.capacity.is_some() && !features.consumable_capacity) {
        let (name, kind) = (full_name(claim), if request.exactly.is_some() { "request" } else { "subrequest" });
        let why = "has capacity requests, but the DRAConsumableCapacity feature is disabled";
        return Err(Status::error(format!("claim {name}, {kind} {}: {why}", parts.short)));
    }
    let alternatives = alternatives.into_iter().map(|p| want(listers, claim, p)).collect::<Result<_, _>>()?;
    Ok(Request { name: name.clone(), alternatives })
}

fn want(listers: &dyn Listers, claim: &ResourceClaim, parts: RequestParts<'_>) -> Result<Want, Status> {
    let RequestParts { name, short, class, .. } = parts;
    if class.is_empty() {
        return Err(Status::error(format!("request {name}: unsupported request type")));
    }
    let class = listers
        .device_class(class)
        .ok_or_else(|| Status::unresolvable(format!("request {name}: device class {class} does not exist")))?;
    let wrong = |what: String| Status::error(format!("claim {}, request {short}{what}", full_name(claim)));
    let mut selectors = Vec::new();
    for (i, s) in parts.selectors.into_iter().flatten().enumerate() {
        let Some(cel) = &s.cel else {
            return Err(wrong(format!(", selector #{i}: CEL expression empty (unsupported selector type?)")));
        };
        selectors.push(cel.expression.clone());
    }
    let amount = match parts.mode.unwrap_or("ExactCount") {
        "ExactCount" => Amount::Exactly(usize::try_from(parts.count.unwrap_or(1)).unwrap_or(usize::MAX)),
        "All" => Amount::All,
        other => return Err(wrong(format!(": unsupported count mode {other}"))),
    };
    let capacity = parts.capacity.and_then(|c| c.requests.as_ref()).into_iter().flatten();
    let capacity = capacity.map(|(name, amount)| (name.clone(), quantity(amount))).collect();
    let tolerations = parts.tolerations.cloned().unwrap_or_default();
    Ok(Want { short: short.to_owned(), name, class, selectors, amount, capacity, tolerations, admin: parts.admin })
}
