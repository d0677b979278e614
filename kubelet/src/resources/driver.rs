//! Choice of the program that makes cgroups: the runtime's own, so that both agree. Answers for upstream's
//! `getCgroupDriverFromCRI`.

use super::systemd::{self, Systemd};
use super::{CgroupError, Driver};
use crate::cri::{CriError, Runtime, v1};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Tries while the runtime is still starting, and the pause between them.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_secs(2);

/// Name of the runtime's driver, or `configured` where the runtime does not tell.
///
/// # Errors
/// The runtime does not answer, or with a driver that there is not.
pub async fn of_runtime(runtime: &dyn Runtime, configured: &str) -> Result<String, CriError> {
    let mut answer = runtime.runtime_config().await;
    for _ in 1..TRIES {
        match &answer {
            Err(error) if !error.is_unimplemented() => tokio::time::sleep(PAUSE).await,
            _ => break,
        }
        answer = runtime.runtime_config().await;
    }
    let told = match answer {
        Err(error) if error.is_unimplemented() => {
            tracing::info!(
                cgroup_driver = configured,
                "CRI implementation should be updated to support RuntimeConfig. Falling back to using cgroupDriver from kubelet config."
            );
            crate::metrics::runtime_is_old();
            return Ok(configured.to_owned());
        }
        answer => answer?,
    };
    let Some(linux) = told.linux else { return Ok(configured.to_owned()) };
    let name = match v1::CgroupDriver::try_from(linux.cgroup_driver) {
        Ok(v1::CgroupDriver::Systemd) => "systemd",
        Ok(v1::CgroupDriver::Cgroupfs) => "cgroupfs",
        Err(_) => {
            let message = format!("runtime returned an unknown cgroup driver {}", linux.cgroup_driver);
            return Err(CriError::Rpc { code: "Unknown", message });
        }
    };
    if name != configured {
        tracing::warn!(configured, runtime = name, "The runtime's cgroup driver is not the configured one");
    }
    tracing::info!(cgroup_driver = name, "Using cgroup driver setting received from the CRI runtime");
    Ok(name.to_owned())
}

/// The driver of a name.
///
/// # Errors
/// systemd does not run the machine.
pub fn named(name: &str) -> Result<Driver, CgroupError> {
    match name {
        "systemd" if systemd::is_running() => Ok(Driver::Systemd(Arc::new(Systemd::new(Handle::current())))),
        "systemd" => {
            Err(CgroupError("systemd not running on this host, cannot use systemd cgroups manager".to_owned()))
        }
        _ => Ok(Driver::Cgroupfs),
    }
}
