//! Devices, by count: as many of each driver as the pod's claims want are on the node and free.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{World, int, list, selectors, text};

fn results(claim: &Value) -> impl Iterator<Item = &Value> {
    list(&claim["status"]["allocation"]["devices"]["results"])
}

/// The driver whose devices a class stands for; classes of tests select by driver alone.
fn driver(world: &World, request: &Value) -> Option<String> {
    let class = world.find("DeviceClass", &Value::Null, &request["exactly"]["deviceClassName"])?;
    let expression = text(&class["spec"]["selectors"][0]["cel"]["expression"]);
    expression.split('"').nth(1).map(str::to_owned)
}

/// See the module. Allocated claims are reached from where their allocation says.
pub(super) fn enough(world: &World, pod: &Value, node: &Value) -> bool {
    let mut wanted: BTreeMap<String, i64> = BTreeMap::new();
    for reference in list(&pod["spec"]["resourceClaims"]) {
        let found = world.find("ResourceClaim", &pod["metadata"]["namespace"], &reference["resourceClaimName"]);
        let Some(claim) = found else { return false };
        let allocation = &claim["status"]["allocation"];
        if !allocation.is_null() {
            if !selectors::node_selector_selects(&allocation["nodeSelector"], node) {
                return false;
            }
            continue;
        }
        for request in list(&claim["spec"]["devices"]["requests"]) {
            let Some(driver) = driver(world, request) else { return false };
            *wanted.entry(driver).or_default() += int(&request["exactly"]["count"]);
        }
    }
    let gone = |pool: &Value, device: &Value| {
        world.all("ResourceClaim").iter().flat_map(results).any(|r| r["pool"] == *pool && r["device"] == *device)
    };
    wanted.into_iter().all(|(driver, count)| {
        let here = |s: &&Value| s["spec"]["driver"] == *driver && s["spec"]["nodeName"] == node["metadata"]["name"];
        let free = |s: &Value| {
            let pool = s["spec"]["pool"]["name"].clone();
            list(&s["spec"]["devices"]).filter(|d| !gone(&pool, &d["name"])).count()
        };
        let left: usize = world.all("ResourceSlice").iter().filter(here).map(free).sum();
        i64::try_from(left).expect("few") >= count
    })
}
