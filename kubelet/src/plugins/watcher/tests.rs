use super::super::registration::v1::registration_server::{Registration, RegistrationServer};
use super::super::registration::v1::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use super::super::{Handler, HandlerError, Plugin};
use super::*;
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

const PATIENCE: Duration = Duration::from_secs(20);

/// Takes plugins in, and tells of it; refuses those of the name `bad` once.
struct Recorder {
    told: mpsc::UnboundedSender<String>,
    refusals: Mutex<u32>,
}

#[async_trait]
impl Handler for Recorder {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        if plugin.versions.is_empty() { Err("no version".into()) } else { Ok(()) }
    }
    async fn register(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        if plugin.name == "bad" && std::mem::take(&mut *self.refusals.lock()) > 0 {
            return Err("refused".into());
        }
        Ok(self.told.send(format!("+{} {}", plugin.name, plugin.endpoint.display()))?)
    }
    async fn deregister(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        Ok(self.told.send(format!("-{}", plugin.name))?)
    }
}

/// A plugin, and what it was told.
#[derive(Clone)]
struct Served {
    info: PluginInfo,
    told: mpsc::UnboundedSender<String>,
}

#[tonic::async_trait]
impl Registration for Served {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }
    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = status.into_inner();
        self.told.send(format!("{} {plugin_registered} {error}", self.info.name)).ok();
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

fn serve(socket: &Path, kind: &str, name: &str, told: &mpsc::UnboundedSender<String>) -> JoinHandle<()> {
    let info = PluginInfo {
        r#type: kind.to_owned(),
        name: name.to_owned(),
        endpoint: String::new(),
        supported_versions: vec!["1.0.0".to_owned()],
    };
    let listener = UnixListener::bind(socket).expect("a socket");
    let service = RegistrationServer::new(Served { info, told: told.clone() });
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(async move { server.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("served") })
}

async fn next(told: &mut mpsc::UnboundedReceiver<String>) -> String {
    tokio::time::timeout(PATIENCE, told.recv()).await.expect("in time").expect("a word")
}

#[tokio::test]
async fn plugins_come_and_go_with_their_sockets() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tell, mut told) = mpsc::unbounded_channel();
    let (tell_plugin, mut told_plugin) = mpsc::unbounded_channel();
    let recorder = Arc::new(Recorder { told: tell, refusals: Mutex::new(1) });
    let handlers: Handlers = [("CSIPlugin", recorder as Arc<dyn Handler>)].into();
    // One is there before the kubelet.
    let first = folder.path().join("a-reg.sock");
    let server = serve(&first, "CSIPlugin", "a", &tell_plugin);
    let shutdown = CancellationToken::new();
    let watching = tokio::spawn(run(folder.path().to_path_buf(), handlers, shutdown.clone()));
    assert_eq!(next(&mut told).await, format!("+a {}", first.display()));
    assert_eq!(next(&mut told_plugin).await, "a true ");
    // In a folder of its own, of a type that nobody handles, hidden.
    std::fs::create_dir(folder.path().join("deep")).expect("made");
    let deep = folder.path().join("deep/b.sock");
    let _b = serve(&deep, "CSIPlugin", "b", &tell_plugin);
    assert_eq!(next(&mut told).await, format!("+b {}", deep.display()));
    assert_eq!(next(&mut told_plugin).await, "b true ");
    let _hidden = serve(&folder.path().join(".hidden"), "CSIPlugin", "hidden", &tell_plugin);
    let other = folder.path().join("c.sock");
    let _c = serve(&other, "Other", "c", &tell_plugin);
    let unknown = "RegisterPlugin error -- no handler registered for plugin type: Other at socket";
    assert_eq!(next(&mut told_plugin).await, format!("c false {unknown} {}", other.display()));
    // One that is replaced by another process is another plugin.
    server.abort();
    std::fs::remove_file(&first).expect("removed");
    assert_eq!(next(&mut told).await, "-a");
    let _again = serve(&first, "CSIPlugin", "a2", &tell_plugin);
    assert_eq!(next(&mut told).await, format!("+a2 {}", first.display()));
    assert_eq!(next(&mut told_plugin).await, "a2 true ");
    // A registration that fails is tried again, and the plugin learns of both.
    let bad = folder.path().join("bad.sock");
    let _bad = serve(&bad, "CSIPlugin", "bad", &tell_plugin);
    // The one of the unknown type is refused again and again.
    drop(_c);
    std::fs::remove_file(&other).expect("removed");
    let refused = "bad false RegisterPlugin error -- plugin registration failed with err: refused";
    let word = loop {
        let word = next(&mut told_plugin).await;
        if !word.starts_with("c ") {
            break word;
        }
    };
    assert_eq!(word, refused);
    assert_eq!(next(&mut told).await, format!("+bad {}", bad.display()));
    assert_eq!(next(&mut told_plugin).await, "bad true ");
    shutdown.cancel();
    watching.await.expect("ended");
}
