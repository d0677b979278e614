//! A driver of dynamic resources for tests: `dra-driver ROOT NAME` registers with the kubelet whose root directory ROOT is. What
//! it is asked for is written to `ROOT/plugins/NAME/calls.log`, a line a call; as long as there is a file `refuse` beside it,
//! every claim is refused.

#[path = "../registration/mod.rs"]
mod registration;

use std::path::Path;

use kubelet::resource_claims::v1;
use registration::{Plugin, listen};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use v1::dra_plugin_server::{DraPlugin, DraPluginServer};

type Answer<T> = Result<Response<T>, Status>;

struct Driver(Plugin);

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Answer<v1::NodePrepareResourcesResponse> {
        let prepare = |claim: v1::Claim| {
            self.0.log(&format!("prepare {}", claim.name));
            let device = v1::Device {
                pool_name: "pool".to_owned(),
                device_name: "zero".to_owned(),
                cdi_device_ids: vec!["vendor.test/device=zero".to_owned()],
                ..v1::Device::default()
            };
            let is_refused = self.0.folder.join("refuse").exists();
            let error = if is_refused { "the device is busy" } else { "" }.to_owned();
            (claim.uid, v1::NodePrepareResourceResponse { devices: vec![device], error })
        };
        let claims = request.into_inner().claims.into_iter().map(prepare).collect();
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Answer<v1::NodeUnprepareResourcesResponse> {
        let unprepare = |claim: v1::Claim| {
            self.0.log(&format!("unprepare {}", claim.name));
            (claim.uid, v1::NodeUnprepareResourceResponse::default())
        };
        let claims = request.into_inner().claims.into_iter().map(unprepare).collect();
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims }))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, name] = arguments.as_slice() else { anyhow::bail!("usage: dra-driver ROOT NAME") };
    let root = Path::new(root);
    let plugin = Plugin::new(root, "DRAPlugin", name, &["v1.DRAPlugin"])?;
    let service = Server::builder().add_service(DraPluginServer::new(Driver(plugin.clone())));
    let service = service.serve_with_incoming(listen(&plugin.socket())?);
    tokio::try_join!(async { Ok(service.await?) }, plugin.register(root))?;
    Ok(())
}
