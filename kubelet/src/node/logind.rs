//! logind over D-Bus: shutdowns of the machine are delayed and heard of. Answers for upstream's
//! `pkg/kubelet/nodeshutdown/systemd`.

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zbus::message::Type;
use zbus::{Connection, MatchRule, MessageStream, OwnedVariant};

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SIGNALS: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");
const HANG_UP: i32 = 1;

/// Failures of logind, and of delaying shutdowns by it.
#[derive(Debug, thiserror::Error)]
pub enum LogindError {
    /// The bus, or logind behind it, is away or refuses.
    #[error(transparent)]
    Bus(#[from] zbus::Error),
    /// The file that has logind grant a delay cannot be written.
    #[error(transparent)]
    Override(#[from] std::io::Error),
    /// Writing that file panicked.
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
    /// logind does not grant a longer delay; upstream's text.
    #[error("unable to override inhibit delay by shutdown manager: {0}")]
    Grant(#[source] Box<LogindError>),
    /// logind does not come to grant a delay; upstream's text.
    #[error(
        "node shutdown manager was timed out after {attempts} attempts waiting for logind InhibitDelayMaxSec to update to \
         {wanted:?} (ShutdownGracePeriod), current value is {granted:?}"
    )]
    NotGranted {
        /// Attempts at finding out.
        attempts: usize,
        /// Delay that is needed.
        wanted: Duration,
        /// Delay that is granted.
        granted: Duration,
    },
}

/// A delay of shutdowns, which ends when this is dropped.
pub type Inhibitor = Box<dyn Send>;

/// Source of the machine's shutdown.
#[async_trait]
pub trait Logind: Send + Sync {
    /// The longest delay that it grants.
    async fn longest_delay(&self) -> Result<Duration, LogindError>;
    /// Has it grant a longer one.
    async fn grant_delay(&self, delay: Duration) -> Result<(), LogindError>;
    /// Delays shutdowns from now on.
    async fn inhibit(&self) -> Result<Inhibitor, LogindError>;
    /// Shutdowns that begin (true) and that are called off (false), until logind goes away, and its delays with it.
    async fn shutdowns(&self) -> Result<BoxStream<'static, bool>, LogindError>;
}

/// The machine's logind.
pub struct SystemLogind {
    connection: Connection,
    configuration: PathBuf,
}

impl SystemLogind {
    /// Over the system's bus.
    ///
    /// # Errors
    /// There is no bus.
    pub async fn connect() -> Result<Self, LogindError> {
        let connection = crate::dbus::system().await?;
        Ok(Self { connection, configuration: "/etc/systemd/logind.conf.d".into() })
    }
}

/// The file that has logind grant a delay.
fn override_file(delay: Duration) -> String {
    format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={:.0}\n", delay.as_secs_f64())
}

fn write_override(folder: &Path, delay: Duration) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("99-kubelet.conf"), override_file(delay))
}

/// Signals of the bus that logind has gone, or has come back.
fn restarts() -> zbus::Result<MatchRule<'static>> {
    let rule = MatchRule::builder().msg_type(Type::Signal).interface("org.freedesktop.DBus").member("NameOwnerChanged");
    rule.arg(0, SERVICE).build()
}

#[async_trait]
impl Logind for SystemLogind {
    async fn longest_delay(&self) -> Result<Duration, LogindError> {
        let properties = Some("org.freedesktop.DBus.Properties");
        let body = (MANAGER, "InhibitDelayMaxUSec");
        let answer = self.connection.call_method(Some(SERVICE), PATH, properties, "Get", &body).await;
        let value: OwnedVariant = answer.and_then(|answer| answer.body().deserialize())?;
        let micros = u64::try_from(value)?;
        Ok(Duration::from_micros(micros))
    }

    async fn grant_delay(&self, delay: Duration) -> Result<(), LogindError> {
        let folder = self.configuration.clone();
        tokio::task::spawn_blocking(move || write_override(&folder, delay)).await??;
        let body = ("systemd-logind.service", "all", HANG_UP);
        let reloaded = self
            .connection
            .call_method(
                Some("org.freedesktop.systemd1"),
                "/org/freedesktop/systemd1",
                Some("org.freedesktop.systemd1.Manager"),
                "KillUnit",
                &body,
            )
            .await;
        Ok(reloaded.map(drop)?)
    }

    async fn inhibit(&self) -> Result<Inhibitor, LogindError> {
        let body = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay");
        let answer = self.connection.call_method(Some(SERVICE), PATH, Some(MANAGER), "Inhibit", &body).await;
        let lock: Result<zbus::OwnedFd, _> = answer.and_then(|answer| answer.body().deserialize());
        Ok(Box::new(lock?))
    }

    async fn shutdowns(&self) -> Result<BoxStream<'static, bool>, LogindError> {
        let rule = MatchRule::builder().msg_type(Type::Signal).interface(MANAGER).member("PrepareForShutdown").build();
        let signals = MessageStream::for_match_rule(rule?, &self.connection, Some(SIGNALS)).await?;
        let begins =
            |signal: zbus::Result<zbus::Message>| async move { signal.ok()?.body().deserialize::<bool>().ok() };
        let restarts = MessageStream::for_match_rule(restarts()?, &self.connection, Some(SIGNALS)).await?;
        Ok(signals.filter_map(begins).take_until(restarts.into_future()).boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// The part of logind and of systemd that is used, at the other end of a socket.
    async fn fake() -> (SystemLogind, Connection, tempfile::TempDir) {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let builder = zbus::connection::Builder::unix_stream;
        let server = builder(theirs).server(zbus::Guid::generate()).p2p().build();
        let (server, connection) = tokio::try_join!(server, builder(ours).p2p().build()).expect("connected");
        let folder = tempfile::tempdir().expect("folder");
        let mut calls = MessageStream::from(&server);
        let answering = server.clone();
        tokio::spawn(async move {
            while let Some(Ok(call)) = calls.next().await {
                let header = call.header();
                let member = header.member().map(ToString::to_string);
                let sent = match member.as_deref() {
                    Some("Get") => answering.reply(&header, &zbus::Variant::from(5_000_000_u64)).await,
                    Some("Inhibit") => {
                        let body = call.body();
                        let what: (String, String, String, String) = body.deserialize().expect("body");
                        assert_eq!((what.0.as_str(), what.3.as_str()), ("shutdown", "delay"));
                        let file = std::fs::File::open("/dev/null").expect("file");
                        answering.reply(&header, &zbus::OwnedFd::from(std::os::fd::OwnedFd::from(file))).await
                    }
                    Some("KillUnit") => answering.reply(&header, &()).await,
                    _ => Ok(()),
                };
                sent.expect("answered");
            }
        });
        (SystemLogind { connection, configuration: folder.path().join("d") }, server, folder)
    }

    #[tokio::test]
    async fn delays_are_read_granted_and_taken() {
        let (logind, _server, folder) = fake().await;
        assert_eq!(logind.longest_delay().await.expect("read"), Duration::from_secs(5));
        logind.grant_delay(Duration::from_secs(90)).await.expect("granted");
        let written = std::fs::read_to_string(folder.path().join("d/99-kubelet.conf")).expect("file");
        assert_eq!(written, "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=90\n");
        drop(logind.inhibit().await.expect("delayed"));
    }

    #[tokio::test]
    async fn shutdowns_are_heard_of() {
        let (logind, server, _folder) = fake().await;
        let shutdowns = logind.shutdowns().await.expect("signals");
        for begins in [true, false] {
            server.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForShutdown", &begins).await.expect("sent");
        }
        assert_eq!(shutdowns.take(2).collect::<Vec<_>>().await, [true, false]);
    }

    #[tokio::test]
    async fn a_logind_that_is_started_anew_is_asked_anew() {
        let (logind, server, _folder) = fake().await;
        let mut shutdowns = logind.shutdowns().await.expect("signals");
        let (bus, path) = ("org.freedesktop.DBus", "/org/freedesktop/DBus");
        let gone = |name: &'static str| {
            let server = server.clone();
            async move { server.emit_signal(None::<&str>, path, bus, "NameOwnerChanged", &(name, ":1.2", "")).await }
        };
        gone("org.freedesktop.hostname1").await.expect("sent");
        server.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForShutdown", &false).await.expect("sent");
        assert_eq!(shutdowns.next().await, Some(false), "others may come and go");
        gone(SERVICE).await.expect("sent");
        assert_eq!(shutdowns.next().await, None);
    }
}
