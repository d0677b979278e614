//! A driver of dynamic resources for tests: `dra-driver ROOT NAME` registers with the kubelet whose root directory ROOT is. What
//! it is asked for is written to `ROOT/plugins/NAME/calls.log`, a line a call; as long as there is a file `refuse` beside it,
//! every claim is refused.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use kubelet::plugins::v1 as registration;
use kubelet::resource_claims::v1;
use registration::registration_server::{Registration, RegistrationServer};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use v1::dra_plugin_server::{DraPlugin, DraPluginServer};

type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone)]
struct Driver {
    name: String,
    folder: PathBuf,
}

impl Driver {
    fn log(&self, line: &str) {
        let file = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("calls.log"));
        file.and_then(|mut file| writeln!(file, "{line}")).expect("a log");
    }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Answer<v1::NodePrepareResourcesResponse> {
        let prepare = |claim: v1::Claim| {
            self.log(&format!("prepare {}", claim.name));
            let device = v1::Device {
                pool_name: "pool".to_owned(),
                device_name: "zero".to_owned(),
                cdi_device_ids: vec!["vendor.test/device=zero".to_owned()],
                ..v1::Device::default()
            };
            let is_refused = self.folder.join("refuse").exists();
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
            self.log(&format!("unprepare {}", claim.name));
            (claim.uid, v1::NodeUnprepareResourceResponse::default())
        };
        let claims = request.into_inner().claims.into_iter().map(unprepare).collect();
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<registration::InfoRequest>) -> Answer<registration::PluginInfo> {
        Ok(Response::new(registration::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.folder.join("dra.sock").display().to_string(),
            supported_versions: vec!["v1.DRAPlugin".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<registration::RegistrationStatus>,
    ) -> Answer<registration::RegistrationStatusResponse> {
        let status = status.into_inner();
        self.log(&format!("registered {} {}", status.plugin_registered, status.error));
        Ok(Response::new(registration::RegistrationStatusResponse {}))
    }
}

fn listen(socket: &Path) -> anyhow::Result<UnixListenerStream> {
    fs::remove_file(socket).ok();
    Ok(UnixListenerStream::new(UnixListener::bind(socket)?))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, name] = arguments.as_slice() else { anyhow::bail!("usage: dra-driver ROOT NAME") };
    let folder = Path::new(root).join("plugins").join(name);
    fs::create_dir_all(&folder)?;
    let driver = Driver { name: name.clone(), folder: folder.clone() };
    let service = Server::builder().add_service(DraPluginServer::new(driver.clone()));
    let service = service.serve_with_incoming(listen(&folder.join("dra.sock"))?);
    let socket = Path::new(root).join("plugins_registry").join(format!("{name}-reg.sock"));
    let registration = Server::builder().add_service(RegistrationServer::new(driver));
    tokio::try_join!(service, registration.serve_with_incoming(listen(&socket)?))?;
    Ok(())
}
