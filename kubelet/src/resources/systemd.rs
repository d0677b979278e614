//! Slices of systemd, made and changed over D-Bus. Answers for `systemd/v2.go` and `systemd/common.go` of the cgroup
//! library that upstream uses. Knows nothing of pods.

use super::{CgroupError, CgroupVersion};
use futures::StreamExt as _;
use std::future::Future;
use std::num::NonZeroUsize;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::Handle;
use zbus::message::Type;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedObjectPath, Variant};

const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// A new job of a unit takes the place of one that is queued.
const REPLACE: &str = "replace";
/// Time that a slice may take to start or to stop.
const JOB_DEADLINE: Duration = Duration::from_secs(30);
/// Ends of jobs that may wait to be looked at.
const QUEUE: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// Value of a unit's property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Property {
    /// `b`
    Flag(bool),
    /// `t`
    Number(u64),
    /// `s`
    Text(String),
    /// `as`
    Names(Vec<String>),
    /// `ay`
    Bytes(Vec<u8>),
}

impl From<Property> for Variant<'_> {
    fn from(property: Property) -> Self {
        match property {
            Property::Flag(flag) => flag.into(),
            Property::Number(number) => number.into(),
            Property::Text(text) => text.into(),
            Property::Names(names) => names.into(),
            Property::Bytes(bytes) => bytes.into(),
        }
    }
}

/// Slices. Blocking; call from `spawn_blocking`.
pub trait Units: Send + Sync {
    /// Starts a transient slice in its parent; one that is there already stays.
    ///
    /// # Errors
    /// systemd refuses or cannot be asked.
    fn start_slice(&self, unit: &str, parent: &str, version: CgroupVersion) -> Result<(), CgroupError>;
    /// Changes properties until the machine is started again.
    ///
    /// # Errors
    /// systemd refuses or cannot be asked.
    fn set_properties(&self, unit: &str, properties: Vec<(&'static str, Property)>) -> Result<(), CgroupError>;
    /// Stops a slice with what is in it; one that is not there is stopped.
    ///
    /// # Errors
    /// systemd cannot be asked.
    fn stop(&self, unit: &str) -> Result<(), CgroupError>;
}

/// Reports whether systemd runs the machine: sd_booted(3).
pub fn is_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

type Connecting = Pin<Box<dyn Future<Output = zbus::Result<Connection>> + Send>>;

/// The machine's systemd.
pub struct Systemd {
    runtime: Handle,
    connect: Box<dyn Fn() -> Connecting + Send + Sync>,
    connection: tokio::sync::Mutex<Option<Connection>>,
}

impl Systemd {
    /// Asks systemd over the system's bus; connects when it is first needed, and again when the connection is lost.
    pub fn new(runtime: Handle) -> Self {
        Self::over(runtime, || Box::pin(crate::dbus::systemd()))
    }

    fn over(runtime: Handle, connect: impl Fn() -> Connecting + Send + Sync + 'static) -> Self {
        Self { runtime, connect: Box::new(connect), connection: tokio::sync::Mutex::default() }
    }

    /// Runs one exchange, once more on a new connection where the old one turned out to be closed.
    fn ask<T>(&self, what: &str, exchange: impl AsyncFn(Connection) -> zbus::Result<T>) -> Result<T, CgroupError> {
        let answer = self.runtime.block_on(async {
            let first = self.connected().await?;
            let answer = exchange(first.clone()).await;
            match answer {
                Err(zbus::Error::InputOutput(_)) => {}
                Err(_) if first.is_closed() => {}
                answer => return answer,
            }
            self.connection.lock().await.take_if(|kept| kept.is_closed());
            exchange(self.connected().await?).await
        });
        answer.map_err(|error| CgroupError(format!("{what}: {error}")))
    }

    async fn connected(&self) -> zbus::Result<Connection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = (self.connect)().await?;
        // Without it the bus tells nobody that a job has ended.
        call(&connection, "Subscribe", &()).await?;
        *kept = Some(connection.clone());
        Ok(connection)
    }
}

async fn call<B>(connection: &Connection, method: &str, body: &B) -> zbus::Result<Message>
where
    B: serde::Serialize + zbus::DynamicType,
{
    connection.call_method(Some(SERVICE), PATH, Some(MANAGER), method, body).await
}

fn is_error(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(found, ..) if found.as_str() == name)
}

/// Starts a job and waits for its end; tells its result.
async fn job<B>(connection: &Connection, method: &str, body: &B) -> zbus::Result<String>
where
    B: serde::Serialize + zbus::DynamicType,
{
    let ended = MatchRule::builder().msg_type(Type::Signal).interface(MANAGER).member("JobRemoved").build()?;
    let mut ended = MessageStream::for_match_rule(ended, connection, Some(QUEUE)).await?;
    let started: OwnedObjectPath = call(connection, method, body).await?.body().deserialize()?;
    let result = async {
        while let Some(signal) = ended.next().await {
            let signal = signal?;
            let body = signal.body();
            let (_, job, _, result): (u32, OwnedObjectPath, String, String) = body.deserialize()?;
            if job == started {
                return Ok(result);
            }
        }
        Err(zbus::Error::Failure("the connection was closed".to_owned()))
    };
    let late = |_| Err(zbus::Error::Failure(format!("{method} did not end within {} seconds", JOB_DEADLINE.as_secs())));
    tokio::time::timeout(JOB_DEADLINE, result).await.unwrap_or_else(late)
}

async fn forget_failure(connection: &Connection, unit: &str) {
    if let Err(error) = call(connection, "ResetFailedUnit", &unit).await {
        tracing::debug!(unit, %error, "Failed to reset the unit");
    }
}

fn of_slice(unit: &str, parent: &str, version: CgroupVersion) -> Vec<(&'static str, Property)> {
    let io = if version == CgroupVersion::V1 { "BlockIOAccounting" } else { "IOAccounting" };
    let mut properties = vec![
        ("Description", Property::Text(format!("libcontainer container {unit}"))),
        ("Wants", Property::Names(vec![parent.to_owned()])),
    ];
    properties
        .extend(["MemoryAccounting", "CPUAccounting", io, "TasksAccounting"].map(|name| (name, Property::Flag(true))));
    properties.push(("DefaultDependencies", Property::Flag(false)));
    properties
}

fn variants(properties: Vec<(&'static str, Property)>) -> Vec<(&'static str, Variant<'static>)> {
    properties.into_iter().map(|(name, property)| (name, property.into())).collect()
}

impl Units for Systemd {
    fn start_slice(&self, unit: &str, parent: &str, version: CgroupVersion) -> Result<(), CgroupError> {
        let result = self.ask(&format!("error creating systemd unit {unit:?}"), async |connection| {
            let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
            let body = (unit, REPLACE, variants(of_slice(unit, parent, version)), auxiliary);
            match job(&connection, "StartTransientUnit", &body).await {
                Err(error) if is_error(&error, UNIT_EXISTS) => Ok("done".to_owned()),
                result => {
                    if !matches!(result.as_deref(), Ok("done")) {
                        forget_failure(&connection, unit).await;
                    }
                    result
                }
            }
        })?;
        match result.as_str() {
            "done" => Ok(()),
            other => Err(CgroupError(format!("error creating systemd unit `{unit}`: got `{other}`"))),
        }
    }

    fn set_properties(&self, unit: &str, properties: Vec<(&'static str, Property)>) -> Result<(), CgroupError> {
        if properties.is_empty() {
            return Ok(());
        }
        self.ask(&format!("unable to set unit properties of {unit:?}"), async |connection| {
            call(&connection, "SetUnitProperties", &(unit, true, variants(properties.clone()))).await
        })?;
        Ok(())
    }

    fn stop(&self, unit: &str) -> Result<(), CgroupError> {
        let stopped = self.ask(&format!("error removing unit {unit}"), async |connection| {
            let result = job(&connection, "StopUnit", &(unit, REPLACE)).await;
            forget_failure(&connection, unit).await;
            match result {
                Err(error) if is_error(&error, NO_SUCH_UNIT) => Ok("done".to_owned()),
                result => result,
            }
        })?;
        if stopped != "done" {
            tracing::warn!(unit, got = stopped, "Error removing unit. Continuing");
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// A systemd that notes what it is asked and ends each job as it was told to.
    #[derive(Clone, Default)]
    struct Fake {
        asked: Arc<Mutex<Vec<String>>>,
        connections: Arc<Mutex<Vec<(Connection, Connection)>>>,
    }

    impl Fake {
        async fn accept(self) -> zbus::Result<Connection> {
            let (ours, theirs) = UnixStream::pair().expect("socket pair");
            let guid = zbus::Guid::generate();
            let server = zbus::connection::Builder::unix_stream(theirs).server(guid).p2p().build();
            let client = zbus::connection::Builder::unix_stream(ours).p2p().build();
            let (server, client) = tokio::try_join!(server, client)?;
            // From now on nothing that is asked is missed.
            let calls = MessageStream::from(&server);
            tokio::spawn(self.clone().serve(server.clone(), calls));
            self.connections.lock().push((server, client.clone()));
            Ok(client)
        }

        async fn serve(self, connection: Connection, mut calls: MessageStream) {
            while let Some(Ok(message)) = calls.next().await {
                let header = message.header();
                if header.message_type() != Type::MethodCall {
                    continue;
                }
                let method = header.member().map(ToString::to_string).unwrap_or_default();
                let body = message.body();
                let text = match method.as_str() {
                    "StartTransientUnit" => {
                        type Body<'a> =
                            (String, String, Vec<(String, Variant<'a>)>, Vec<(String, Vec<(String, Variant<'a>)>)>);
                        let (unit, mode, properties, _): Body<'_> = body.deserialize().expect("body");
                        let names: Vec<String> = properties.into_iter().map(|(name, _)| name).collect();
                        format!("{unit} {mode} {}", names.join(","))
                    }
                    "SetUnitProperties" => {
                        let (unit, runtime, properties): (String, bool, Vec<(String, Variant<'_>)>) =
                            body.deserialize().expect("body");
                        format!("{unit} {runtime} {properties:?}")
                    }
                    "StopUnit" => {
                        let (unit, mode): (String, String) = body.deserialize().expect("body");
                        format!("{unit} {mode}")
                    }
                    _ => String::new(),
                };
                self.asked.lock().push(format!("{method} {text}").trim().to_owned());
                self.answer(&connection, &message, &method, &text).await.expect("answered");
            }
        }

        async fn answer(
            &self,
            connection: &Connection,
            message: &Message,
            method: &str,
            text: &str,
        ) -> zbus::Result<()> {
            let header = message.header();
            if text.starts_with("there.slice") && method == "StartTransientUnit" {
                return connection.reply_error(&header, UNIT_EXISTS, &"Unit there.slice already exists.").await;
            }
            if text.starts_with("gone.slice") {
                return connection.reply_error(&header, NO_SUCH_UNIT, &"Unit gone.slice not loaded.").await;
            }
            if !matches!(method, "StartTransientUnit" | "StopUnit") {
                return connection.reply(&header, &()).await;
            }
            let job = OwnedObjectPath::try_from(format!("{PATH}/job/{}", self.asked.lock().len()))?;
            connection.reply(&header, &job).await?;
            let other = OwnedObjectPath::try_from(format!("{PATH}/job/0"))?;
            let result = if text.starts_with("broken.slice") { "failed" } else { "done" };
            for (job, result) in [(other, "canceled"), (job, result)] {
                let body = (1_u32, job, "unit", result);
                connection.emit_signal(None::<&str>, PATH, MANAGER, "JobRemoved", &body).await?;
            }
            Ok(())
        }

        fn units(&self) -> Arc<Systemd> {
            let fake = self.clone();
            Arc::new(Systemd::over(Handle::current(), move || Box::pin(fake.clone().accept())))
        }
    }

    async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        tokio::task::spawn_blocking(run).await.expect("ran")
    }

    #[tokio::test]
    async fn slices_are_started_changed_and_stopped() {
        let fake = Fake::default();
        let units = fake.units();
        blocking(move || {
            units.start_slice("kubepods.slice", "-.slice", CgroupVersion::V2).expect("started");
            let properties = vec![("MemoryMax", Property::Number(5)), ("AllowedCPUs", Property::Bytes(vec![3]))];
            units.set_properties("kubepods.slice", properties).expect("set");
            units.set_properties("kubepods.slice", Vec::new()).expect("nothing to set");
            units.stop("kubepods.slice").expect("stopped");
        })
        .await;
        let asked = fake.asked.lock().clone();
        let start = "StartTransientUnit kubepods.slice replace Description,Wants,MemoryAccounting,CPUAccounting,\
                     IOAccounting,TasksAccounting,DefaultDependencies";
        assert_eq!(asked[..2], ["Subscribe", start]);
        assert!(
            asked[2].starts_with("SetUnitProperties kubepods.slice true") && asked[2].contains("U64(5)"),
            "{asked:?}"
        );
        assert_eq!(asked[3..], ["StopUnit kubepods.slice replace", "ResetFailedUnit"]);
    }

    #[tokio::test]
    async fn what_is_there_stays_and_what_is_gone_is_stopped() {
        let fake = Fake::default();
        let units = fake.units();
        let broken = blocking(move || {
            units.start_slice("there.slice", "-.slice", CgroupVersion::V2).expect("there");
            units.stop("gone.slice").expect("gone");
            units.start_slice("broken.slice", "-.slice", CgroupVersion::V2).expect_err("failed")
        })
        .await;
        assert_eq!(broken.to_string(), "error creating systemd unit `broken.slice`: got `failed`");
        assert_eq!(fake.asked.lock().last().map(String::as_str), Some("ResetFailedUnit"));
    }

    #[tokio::test]
    async fn a_lost_connection_is_made_again() {
        let fake = Fake::default();
        let units = fake.units();
        let first = Arc::clone(&units);
        blocking(move || first.stop("a.slice").expect("stopped")).await;
        let (lost, noticed) = fake.connections.lock().pop().expect("connection");
        lost.close().await.expect("closed");
        noticed.closed().await;
        blocking(move || units.stop("b.slice").expect("stopped")).await;
        let subscribed = fake.asked.lock().iter().filter(|call| *call == "Subscribe").count();
        assert_eq!(subscribed, 2);
    }
}
