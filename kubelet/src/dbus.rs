//! The system's message bus, by which systemd and logind are asked.

use std::time::Duration;
use zbus::Connection;
use zbus::connection::Builder;

/// The socket of systemd itself, for machines without a message bus.
const PRIVATE: &str = "unix:path=/run/systemd/private";
/// Time that an answer may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Connects to the system's bus.
///
/// # Errors
/// Nothing answers there.
pub(crate) async fn system() -> zbus::Result<Connection> {
    Builder::system().method_timeout(DEADLINE).build().await
}

/// Connects to systemd: over the system's bus, or straight where there is none.
///
/// # Errors
/// Neither answers; the bus's error is told.
pub(crate) async fn systemd() -> zbus::Result<Connection> {
    let refused = match system().await {
        Ok(connection) => return Ok(connection),
        Err(error) => error,
    };
    let straight = Builder::address(PRIVATE).p2p().method_timeout(DEADLINE).build().await;
    straight.map_err(|_| refused)
}
