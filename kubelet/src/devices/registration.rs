//! The socket that device plugins register on: `device-plugins/kubelet.sock`. Plugins see that a kubelet is new by it.

use super::Devices;
use super::v1beta1::registration_server::{Registration, RegistrationServer};
use super::v1beta1::{Empty, RegisterRequest, VERSION};
use crate::plugins;
use shared::types::is_extended_resource;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

const SOCKET: &str = "kubelet.sock";

struct Service(Arc<Devices>);

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest { version, endpoint, resource_name, options } = request.into_inner();
        if version != VERSION {
            return Err(Status::unknown(format!(
                "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
            )));
        }
        if !is_extended_resource(&resource_name) {
            return Err(Status::unknown(format!("the ResourceName {resource_name:?} is invalid")));
        }
        let socket = self.0.folder.join(&endpoint);
        if endpoint.is_empty() || socket.parent() != Some(self.0.folder.as_path()) {
            return Err(Status::unknown(format!("the endpoint {endpoint:?} is invalid")));
        }
        self.0.add(&resource_name, &socket, Some(options.unwrap_or_default()));
        Ok(Response::new(Empty {}))
    }
}

/// Removes the sockets of plugins that an earlier kubelet knew: they make them anew, and register.
fn clean(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Serves the socket until shutdown.
pub(super) async fn run(devices: Arc<Devices>, shutdown: CancellationToken) {
    let folder = devices.folder.clone();
    if let Err(error) = clean(&folder) {
        tracing::error!(folder = %folder.display(), %error, "Failed to clean up the folder of device plugins");
    }
    let service = RegistrationServer::new(Service(devices));
    plugins::serve(&folder.join(SOCKET), tonic::transport::Server::builder().add_service(service), shutdown).await;
}
