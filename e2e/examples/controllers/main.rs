//! Costs of kube-controller-manager: CPU per unit of work, memory, delays; one JSON line per figure.
//!
//! `cargo run --release -p ironclad-e2e --example controllers -- APISERVER MANAGER [PART…]` starts an etcd and the two
//! binaries (ours or upstream's: both take the same flags) for each part. PART: `replicas`, `garbage`, `large`,
//! `services`, `tables` (all by default). Large clusters are written to etcd as a server would have written them.

mod garbage;
mod large;
mod replicas;
mod services;
mod tables;

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
