//! Routes of the machine that lead to addresses of load balancers, marked with a protocol number of their own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, Result};
use ipnet::IpNet;
use serde_json::Value;

use super::plan::Routes;
use crate::shell::run;

/// Protocol number of the routes: nobody else's are touched.
const PROTOCOL: &str = "189";

/// Makes the routes of the pools what is wanted. An address of a pool without a route of its own refuses connections.
///
/// # Errors
/// When `ip` fails.
pub(super) fn apply(wanted: &Routes, pools: &[IpNet]) -> Result<()> {
    for pool in pools {
        let family = family(pool);
        run("ip", &[family, "route", "replace", "unreachable", &pool.to_string(), "proto", PROTOCOL])?;
        let there =
            read(&run("ip", &[family, "-json", "route", "show", "root", &pool.to_string(), "proto", PROTOCOL])?)?;
        for (address, hops) in wanted.iter().filter(|(address, _)| pool.contains(*address)) {
            if !hops.is_empty() && there.get(address) != Some(hops) {
                replace(family, *address, hops)?;
            }
        }
        for address in there.keys().filter(|address| wanted.get(*address).is_none_or(BTreeSet::is_empty)) {
            run("ip", &[family, "route", "delete", &address.to_string(), "proto", PROTOCOL])?;
        }
    }
    Ok(())
}

/// Removes all routes of the pools.
pub(super) fn remove(pools: &[IpNet]) {
    for pool in pools {
        run("ip", &[family(pool), "route", "flush", "root", &pool.to_string(), "proto", PROTOCOL]).ok();
    }
}

fn family(pool: &IpNet) -> &'static str {
    if pool.addr().is_ipv6() { "-6" } else { "-4" }
}

fn replace(family: &str, address: IpAddr, hops: &BTreeSet<IpAddr>) -> Result<()> {
    let texts: Vec<String> = hops.iter().map(ToString::to_string).collect();
    let address = address.to_string();
    let mut arguments = vec![family, "route", "replace", address.as_str(), "proto", PROTOCOL];
    match texts.as_slice() {
        [one] => arguments.extend(["via", one]),
        all => all.iter().for_each(|hop| arguments.extend(["nexthop", "via", hop])),
    }
    run("ip", &arguments).map(drop)
}

/// Reads `ip -json route show`; the pool's own route has no next hop and is left out.
fn read(text: &str) -> Result<Routes> {
    let listed: Vec<Value> = if text.trim().is_empty() {
        Vec::new()
    } else {
        serde_json::from_str(text).context("cannot read the routes")?
    };
    let mut found = Routes::new();
    for route in &listed {
        let address = route["dst"].as_str().and_then(|text| text.parse().ok());
        let Some(address) = address.filter(|_| route["type"] != "unreachable") else { continue };
        let several = route["nexthops"].as_array().into_iter().flatten();
        let hops =
            several.chain(std::iter::once(route)).filter_map(|hop| hop["gateway"].as_str()?.parse::<IpAddr>().ok());
        found.entry(address).or_default().extend(hops);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_one_and_of_several_next_hops_are_read() {
        let text = r#"[{"type":"unreachable","dst":"10.89.1.0/24","protocol":"189","flags":[]},
            {"dst":"10.89.1.1","gateway":"10.89.0.11","dev":"ironclad0","protocol":"189","flags":[]},
            {"dst":"10.89.1.2","protocol":"189","flags":[],"nexthops":[
                {"gateway":"10.89.0.11","dev":"ironclad0","weight":1,"flags":[]},
                {"gateway":"10.89.0.12","dev":"ironclad0","weight":1,"flags":[]}]}]"#;
        let shown: Vec<String> = read(text).expect("routes").iter().map(|(to, via)| format!("{to} {via:?}")).collect();
        assert_eq!(shown, ["10.89.1.1 {10.89.0.11}", "10.89.1.2 {10.89.0.11, 10.89.0.12}"]);
        assert!(read("").expect("no routes").is_empty());
    }
}
