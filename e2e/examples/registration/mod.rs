//! The registration of a test's plugin with the kubelet.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use kubelet::plugins::v1::registration_server::{Registration, RegistrationServer};
use kubelet::plugins::v1::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// A plugin that has a folder for its socket and its log.
#[derive(Clone)]
pub struct Plugin {
    /// `CSIPlugin`, `DRAPlugin`.
    pub kind: &'static str,
    pub name: String,
    pub versions: &'static [&'static str],
    pub folder: PathBuf,
}

impl Plugin {
    /// A plugin below a kubelet's root directory.
    pub fn new(root: &Path, kind: &'static str, name: &str, versions: &'static [&'static str]) -> anyhow::Result<Self> {
        let folder = root.join("plugins").join(name);
        fs::create_dir_all(&folder)?;
        Ok(Self { kind, name: name.to_owned(), versions, folder })
    }

    /// The socket of its service.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("plugin.sock")
    }

    /// Writes a line of `calls.log`.
    pub fn log(&self, line: &str) {
        let file = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("calls.log"));
        file.and_then(|mut file| writeln!(file, "{line}")).expect("a log");
    }

    /// Serves the registration until the process ends.
    pub async fn register(self, root: &Path) -> anyhow::Result<()> {
        let socket = root.join("plugins_registry").join(format!("{}-reg.sock", self.name));
        let server = Server::builder().add_service(RegistrationServer::new(self));
        Ok(server.serve_with_incoming(listen(&socket)?).await?)
    }
}

/// Listens on a socket, which is made anew.
pub fn listen(socket: &Path) -> anyhow::Result<UnixListenerStream> {
    fs::remove_file(socket).ok();
    Ok(UnixListenerStream::new(UnixListener::bind(socket)?))
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: self.kind.to_owned(),
            name: self.name.clone(),
            endpoint: self.socket().display().to_string(),
            supported_versions: self.versions.iter().map(|version| (*version).to_owned()).collect(),
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        self.log(&format!("registered {} {}", status.plugin_registered, status.error));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
