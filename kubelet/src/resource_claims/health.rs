//! Health of the devices of claims: what drivers tell of it, and for how long that counts. The checkpoint has upstream's form,
//! `dra_health_state`. Answers for upstream's `healthinfo.go`.

use super::state::Claim;
use super::v1alpha1 as api;
use crate::files;
use crate::resource_health::{ResourceHealths, health_of};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceHealth;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Upstream's `DefaultHealthTimeout`: what a driver has told counts for so long unless it says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most devices of one driver whose health is kept.
const MOST_DEVICES: usize = 16_384;

/// Words of a driver about one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Told {
    pool_name: String,
    device_name: String,
    /// `Healthy`, `Unhealthy` or `Unknown`.
    health: String,
    last_updated: MicroTime,
    /// In nanoseconds, as Go writes it; zero for the default.
    #[serde(default)]
    health_check_timeout: u64,
}

impl Told {
    fn new(told: api::DeviceHealth, now: Timestamp) -> Self {
        let health = match told.health() {
            api::HealthStatus::Healthy => "Healthy",
            api::HealthStatus::Unhealthy => "Unhealthy",
            api::HealthStatus::Unknown => "Unknown",
        };
        let seconds = u64::try_from(told.health_check_timeout_seconds).unwrap_or_default();
        let timeout = if seconds == 0 { TIMEOUT } else { Duration::from_secs(seconds) };
        let device = told.device.unwrap_or_default();
        Self {
            pool_name: device.pool_name,
            device_name: device.device_name,
            health: health.to_owned(),
            last_updated: MicroTime(now),
            health_check_timeout: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    fn key(&self) -> String {
        format!("{}/{}", self.pool_name, self.device_name)
    }

    fn is_late(&self, now: Timestamp) -> bool {
        let timeout = match self.health_check_timeout {
            0 => TIMEOUT,
            nanoseconds => Duration::from_nanos(nanoseconds),
        };
        Duration::try_from(now.duration_since(self.last_updated.0)).is_ok_and(|since| since > timeout)
    }

    fn is_other(&self, before: &Self) -> bool {
        (&self.health, self.health_check_timeout) != (&before.health, before.health_check_timeout)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverHealth {
    /// By pool and device.
    devices: BTreeMap<String, Told>,
}

/// Health of devices by driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct HealthState(BTreeMap<String, DriverHealth>);

impl HealthState {
    /// Takes in all that a driver tells: pools and names of the devices whose health is another. What is not told any more is
    /// unknown after its time.
    pub(super) fn update(
        &mut self,
        driver: &str,
        list: Vec<api::DeviceHealth>,
        now: Timestamp,
    ) -> BTreeSet<(String, String)> {
        let known = &mut self.0.entry(driver.to_owned()).or_default().devices;
        let (mut changed, mut told) = (BTreeSet::new(), BTreeSet::new());
        for device in list.into_iter().take(MOST_DEVICES) {
            let device = Told::new(device, now);
            let key = device.key();
            if known.get(&key).is_none_or(|before| device.is_other(before)) {
                changed.insert((device.pool_name.clone(), device.device_name.clone()));
            }
            told.insert(key.clone());
            known.insert(key, device);
        }
        for (key, device) in known.iter_mut().filter(|(key, _)| !told.contains(*key)) {
            if device.health != "Unknown" && device.is_late(now) {
                tracing::debug!(driver, device = key, "The health of a device is not told any more");
                "Unknown".clone_into(&mut device.health);
                device.last_updated = MicroTime(now);
                changed.insert((device.pool_name.clone(), device.device_name.clone()));
            }
        }
        while known.len() > MOST_DEVICES {
            known.pop_last();
        }
        changed
    }

    /// Forgets what a driver has told: it is away. Reports whether it had told anything.
    pub(super) fn clear(&mut self, driver: &str) -> bool {
        self.0.remove(driver).is_some()
    }

    fn of(&self, driver: &str, pool: &str, device: &str, now: Timestamp) -> &str {
        let told = self.0.get(driver).and_then(|driver| driver.devices.get(&format!("{pool}/{device}")));
        told.filter(|told| !told.is_late(now)).map_or("Unknown", |told| told.health.as_str())
    }

    /// Health of all devices of a claim.
    pub(super) fn of_claim(&self, claim: &Claim, now: Timestamp) -> Vec<ResourceHealth> {
        let health = |(driver, device): (&String, &super::Device)| {
            let (pool, name) = (&device.pool_name, &device.device_name);
            let id = device.cdi_device_ids.first().cloned().unwrap_or_else(|| format!("{driver}/{pool}/{name}"));
            health_of(&id, self.of(driver, pool, name, now))
        };
        claim.devices().map(health).collect()
    }

    /// Writes the checkpoint, whole or not at all.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        files::write_json(file, self)
    }

    /// Reads the checkpoint: nothing where there is none, or where it is damaged, as drivers tell it anew.
    pub(super) fn read(file: &Path) -> Self {
        files::read_json(file).map(Option::unwrap_or_default).unwrap_or_else(|error| {
            tracing::error!(file = %file.display(), %error, "Failed to load health checkpoint, proceeding with empty cache");
            Self::default()
        })
    }
}

/// Adds the health of a claim's devices to that of a container: under the name of the pod's entry, and of the request of it
/// that the container has.
pub(super) fn add(healths: &mut ResourceHealths, (entry, request): (&str, Option<&str>), devices: Vec<ResourceHealth>) {
    let name = match request.filter(|request| !request.is_empty()) {
        Some(request) => format!("claim:{entry}/{request}"),
        None => format!("claim:{entry}"),
    };
    if !devices.is_empty() {
        healths.insert(name, devices);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(device: &str, health: api::HealthStatus, seconds: i64) -> api::DeviceHealth {
        api::DeviceHealth {
            device: Some(api::DeviceIdentifier { pool_name: "p".to_owned(), device_name: device.to_owned() }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: seconds,
        }
    }

    #[test]
    fn what_is_told_counts_for_its_time() {
        use api::HealthStatus::{Healthy, Unhealthy};
        let at = |second: i64| Timestamp::from_second(1_000 + second).expect("a time");
        let mut state = HealthState::default();
        let names = |changed: BTreeSet<(String, String)>| -> Vec<String> {
            changed.into_iter().map(|(_, device)| device).collect()
        };
        let both = || vec![told("a", Healthy, 0), told("b", Unhealthy, 5)];
        assert_eq!(names(state.update("d", both(), at(0))), ["a", "b"]);
        assert_eq!(names(state.update("d", both(), at(1))), Vec::<String>::new(), "it is the same");
        let health = |state: &HealthState, device: &str, second| state.of("d", "p", device, at(second)).to_owned();
        for (device, second, expected) in [
            ("a", 31, "Healthy"),
            ("a", 32, "Unknown"),
            ("b", 6, "Unhealthy"),
            ("b", 7, "Unknown"),
            ("c", 1, "Unknown"),
        ] {
            assert_eq!(health(&state, device, second), expected, "{device} {second}");
        }
        // What is not told any more counts for the rest of its time.
        assert_eq!(names(state.update("d", vec![told("a", Unhealthy, -1)], at(6))), ["a"]);
        assert_eq!(names(state.update("d", vec![told("a", Unhealthy, -1)], at(7))), ["b"]);
        assert_eq!(names(state.update("d", vec![told("a", Unhealthy, -1)], at(40))), Vec::<String>::new());
        assert!(state.clear("d") && !state.clear("d"));
        assert_eq!(health(&state, "a", 40), "Unknown");
    }

    #[test]
    fn a_driver_that_tells_of_no_end_of_devices_is_heard_in_part() {
        let mut state = HealthState::default();
        let many = |from: usize| {
            (from..from + MOST_DEVICES + 1).map(|id| told(&id.to_string(), api::HealthStatus::Healthy, 0)).collect()
        };
        assert_eq!(state.update("d", many(0), Timestamp::UNIX_EPOCH).len(), MOST_DEVICES);
        state.update("d", many(1_000_000), Timestamp::UNIX_EPOCH);
        assert_eq!(state.0["d"].devices.len(), MOST_DEVICES);
    }

    #[test]
    fn the_checkpoint_is_upstreams() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("dra_health_state");
        assert_eq!(HealthState::read(&file), HealthState::default());
        let upstreams = r#"{"d":{"Devices":{"p/a":{"PoolName":"p","DeviceName":"a","Health":"Healthy","LastUpdated":"2026-01-01T01:00:00.123456+01:00","HealthCheckTimeout":30000000000}}}}"#;
        std::fs::write(&file, upstreams).expect("written");
        let state = HealthState::read(&file);
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        assert_eq!(state.of("d", "p", "a", at("2026-01-01T00:00:30Z")), "Healthy");
        assert_eq!(state.of("d", "p", "a", at("2026-01-01T00:00:31Z")), "Unknown");
        state.write(&file).expect("written");
        assert_eq!(HealthState::read(&file), state);
        std::fs::write(&file, "{").expect("damaged");
        assert_eq!(HealthState::read(&file), HealthState::default());
    }
}
