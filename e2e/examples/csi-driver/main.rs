//! A CSI driver for tests: volumes are XFS file systems or devices in files behind a loop, or folders where they were made
//! by hand.
//!
//! `csi-driver ROOT NAME NODE` registers with the kubelet whose root directory ROOT is, as NODE. Volumes are below
//! `ROOT/plugins/NAME`, or in a folder that the drivers of all nodes share (`--data`). What it is asked for is written to
//! `ROOT/plugins/NAME/calls.log`, a line a call.

#[path = "../registration/mod.rs"]
mod registration;

mod controller;
mod mounts;
mod node;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, Command};
use registration::{Plugin, listen};
use store::Store;
use tokio::sync::Mutex;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use v1::controller_server::ControllerServer;
use v1::identity_server::{Identity, IdentityServer};
use v1::node_server::NodeServer;

/// The interface's messages and services, which `build.rs` makes for `prost` and `tonic_prost`.
mod v1 {
    #![allow(
        clippy::allow_attributes_without_reason,
        clippy::pedantic,
        clippy::all,
        missing_docs,
        dead_code,
        reason = "generated from the CSI specification"
    )]
    tonic::include_proto!("csi.v1");
}

/// Key of the node's topology.
const TOPOLOGY: &str = "topology.test.ironclad/node";

type Answer<T> = Result<Response<T>, Status>;

#[allow(clippy::unnecessary_wraps, reason = "answers of calls are results")]
fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

/// The command line.
struct Arguments {
    root: PathBuf,
    name: String,
    node: String,
    data: Option<PathBuf>,
    max_volumes: i64,
}

impl Arguments {
    fn read() -> Self {
        let path = || clap::value_parser!(PathBuf);
        let mut found = Command::new("csi-driver")
            .arg(Arg::new("root").required(true).value_parser(path()))
            .arg(Arg::new("name").required(true))
            .arg(Arg::new("node").required(true))
            .arg(Arg::new("data").long("data").value_parser(path()).help("Folder of volumes and snapshots"))
            .arg(
                Arg::new("max-volumes")
                    .long("max-volumes")
                    .value_parser(clap::value_parser!(i64))
                    .default_value("3")
                    .help("Volumes that the node can have"),
            )
            .get_matches();
        Self {
            root: found.remove_one("root").unwrap_or_default(),
            name: found.remove_one("name").unwrap_or_default(),
            node: found.remove_one("node").unwrap_or_default(),
            data: found.remove_one("data"),
            max_volumes: found.remove_one("max-volumes").unwrap_or_default(),
        }
    }
}

#[derive(Clone)]
struct Driver {
    plugin: Plugin,
    node: String,
    max_volumes: i64,
    store: Store,
    /// Calls that change something are answered one after another.
    turn: Arc<Mutex<()>>,
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(&self, _: Request<v1::GetPluginInfoRequest>) -> Answer<v1::GetPluginInfoResponse> {
        let (name, vendor_version) = (self.plugin.name.clone(), "1".to_owned());
        answer(v1::GetPluginInfoResponse { name, vendor_version, ..Default::default() })
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Answer<v1::GetPluginCapabilitiesResponse> {
        use v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
        let all = [
            Type::Service(Service { r#type: service::Type::ControllerService.into() }),
            Type::VolumeExpansion(VolumeExpansion { r#type: volume_expansion::Type::Online.into() }),
        ];
        let capabilities = all.map(|kind| v1::PluginCapability { r#type: Some(kind) }).into();
        answer(v1::GetPluginCapabilitiesResponse { capabilities })
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Answer<v1::ProbeResponse> {
        answer(v1::ProbeResponse {})
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Arguments { root, name, node, data, max_volumes } = Arguments::read();
    let plugin = Plugin::new(&root, "CSIPlugin", &name, &["1.0.0"])?;
    let store = Store::new(data.as_deref().unwrap_or(Path::new(&plugin.folder)))?;
    store.add_node(&node, max_volumes)?;
    let driver = Driver { plugin: plugin.clone(), node, max_volumes, store, turn: Arc::default() };
    let service = Server::builder()
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(ControllerServer::new(driver.clone()))
        .add_service(NodeServer::new(driver))
        .serve_with_incoming(listen(&plugin.socket())?);
    tokio::try_join!(async { Ok(service.await?) }, plugin.register(&root))?;
    Ok(())
}
