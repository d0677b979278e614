//! Rate, cost and delays of kube-scheduler with a real API server: bindings a second against a client that does nothing
//! else, CPU per pod, delays, memory; one JSON line per figure, with the limit it is held to.
//!
//! `cargo run --release -p ironclad-e2e --example scheduler -- APISERVER SCHEDULER [PART…]` starts an etcd and both
//! binaries (ours or upstream's: they take the same flags). PART: `rate`, `large` (all by default).

mod large;
mod rate;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    // Nobody else installs one in this program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [apiserver, binary, parts @ ..] = args.as_slice() else {
        anyhow::bail!("usage: scheduler APISERVER SCHEDULER [PART…]");
    };
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|p| p == part);
    if wanted("rate") {
        rate::all(apiserver, binary).await?;
    }
    if wanted("large") {
        large::all(apiserver, binary).await?;
    }
    Ok(())
}
