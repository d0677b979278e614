//! Costs of kube-controller-manager: CPU per unit of work, memory, delays; one JSON line per figure.
//!
//! `cargo run --release -p ironclad-e2e --example controllers -- APISERVER MANAGER [PART…]` starts an etcd and the two
//! binaries (ours or upstream's: both take the same flags) for each part. PART: `replicas`, `garbage`, `large`,
//! `services`, `tables` (all by default). Large clusters are written to etcd as a server would have written them.

#[path = "../apiserver/client.rs"]
#[allow(dead_code, reason = "shared with the benchmark of the server")]
mod client;
mod cluster;
mod garbage;
mod large;
mod manager;
#[path = "../../../apiserver/tests/harness/pki.rs"]
#[allow(dead_code, reason = "shared with the tests of the server")]
mod pki;
#[path = "../apiserver/process.rs"]
#[allow(dead_code, reason = "shared with the benchmark of the server")]
mod process;
mod replicas;
mod services;
mod tables;
#[path = "../apiserver/world.rs"]
#[allow(dead_code, reason = "shared with the benchmark of the server")]
mod world;

use serde_json::json;

/// Prints one figure.
pub fn figure(name: &str, value: f64, unit: &str, limit: Option<f64>) {
    let value = (value * 1000.0).round() / 1000.0;
    println!(
        "{}",
        json!({"name": format!("kube-controller-manager: {name}"), "value": value, "unit": unit, "limit": limit})
    );
}

/// A count as a number to divide by.
#[allow(clippy::cast_precision_loss, reason = "small counts")]
pub fn number(count: usize) -> f64 {
    count as f64
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    // Nobody else installs one in this program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [server, binary, parts @ ..] = args.as_slice() else {
        anyhow::bail!("usage: controllers APISERVER MANAGER [PART…]");
    };
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|p| p == part);
    if wanted("replicas") {
        replicas::all(server, binary).await?;
    }
    if wanted("garbage") {
        garbage::all(server, binary).await?;
    }
    if wanted("large") {
        large::all(server, binary).await?;
    }
    if wanted("services") {
        services::all(server, binary).await?;
    }
    if wanted("tables") {
        tables::all(server, binary).await?;
    }
    Ok(())
}
