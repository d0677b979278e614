//! Controllers that move between this process and a cloud's controller manager: those are led under a lock that both
//! processes know, so that no two of them ever run at a time. Answers for `--enable-leader-migration`.

use std::collections::BTreeMap;

use serde_json::Value;
use shared::config::Settings;
use shared::flags::FlagSet;

use crate::engine::registry::Controller;

const KIND: &str = "LeaderMigrationConfiguration";
const COMPONENT: &str = "kube-controller-manager";
/// Lock under which controllers migrate unless a file says otherwise.
const LOCK: &str = "cloud-provider-extraction-migration";
const CLOUD: [&str; 3] = ["node-route-controller", "service-lb-controller", "cloud-node-lifecycle-controller"];
/// Others need the tokens that it makes, so it is never led by itself.
pub const FIRST: &str = "serviceaccount-token-controller";

/// The object waits for its own dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Lock of `--leader-elect-resource-name`.
    Main,
    /// The one that controller managers share.
    Migration,
}

/// Division of controllers among locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The name of the shared lock.
    pub lock: String,
    /// Migrated controllers, and whether it is this process that runs them.
    controllers: BTreeMap<String, bool>,
}

impl Migration {
    /// Reads the flags; none without them.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn from_flags(flags: &FlagSet, known: &BTreeMap<&str, &str>) -> anyhow::Result<Option<Self>> {
        let file = flags.string("leader-migration-config");
        if !flags.boolean("enable-leader-migration") {
            return Ok(None);
        }
        if file.is_empty() {
            let controllers = CLOUD.map(|name| (name.to_owned(), true)).into();
            return Ok(Some(Self { lock: LOCK.to_owned(), controllers }));
        }
        let said = Settings(shared::config::load(&file, KIND)?);
        Self::read(&said, known)
            .map(Some)
            .map_err(|errors| anyhow::anyhow!("failed to parse leader migration configuration: {}", errors.join(", ")))
    }

    fn read(said: &Settings, known: &BTreeMap<&str, &str>) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let lock = said.string("leaderName");
        if lock.is_empty() {
            errors
                .push("leaderName: Required value: leaderName must be set for LeaderMigrationConfiguration".to_owned());
        }
        let mut controllers = BTreeMap::new();
        let leaders = said.get("controllerLeaders").and_then(Value::as_array);
        for (i, leader) in leaders.into_iter().flatten().enumerate() {
            let [component, name] = ["component", "name"].map(|key| leader[key].as_str().unwrap_or_default());
            for (key, text) in [("component", component), ("name", name)] {
                if text.is_empty() {
                    errors.push(format!("controllerLeaders[{i}].{key}: Required value: {key} must be set"));
                }
            }
            let name = known.get(name).copied().unwrap_or(name);
            controllers.insert(name.to_owned(), component == COMPONENT || component == "*");
        }
        if errors.is_empty() { Ok(Self { lock, controllers }) } else { Err(errors) }
    }

    /// The lock that a controller is led under; none when another process runs it.
    #[must_use]
    pub fn lock_of(&self, controller: &str) -> Option<Lock> {
        match self.controllers.get(controller) {
            Some(false) if controller != FIRST => None,
            Some(true) if controller != FIRST => Some(Lock::Migration),
            _ => Some(Lock::Main),
        }
    }
}

/// The controllers that are led under a lock.
pub fn led<'a>(
    table: &'a [Controller],
    migration: Option<&'a Migration>,
    lock: Lock,
) -> impl Iterator<Item = &'a Controller> {
    table.iter().filter(move |c| migration.map_or(Some(Lock::Main), |m| m.lock_of(c.name)) == Some(lock))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controllers::TABLE;
    use crate::engine::registry::known;

    fn read(said: Value) -> Result<Migration, Vec<String>> {
        Migration::read(&Settings(said), &known(TABLE))
    }

    #[test]
    fn who_is_led_under_which_lock() {
        let flags = |args: &[&str]| FlagSet::of(COMPONENT, args).expect("flags");
        assert_eq!(Migration::from_flags(&flags(&[]), &known(TABLE)).expect("flags"), None);
        let usual = Migration::from_flags(&flags(&["--enable-leader-migration"]), &known(TABLE)).expect("flags");
        assert_eq!(usual.as_ref().map(|m| m.lock.as_str()), Some(LOCK));
        let leader = |name: &str, component: &str| json!({"name": name, "component": component});
        let written = read(json!({"leaderName": "l", "controllerLeaders": [
            leader("service", "*"), leader("job-controller", COMPONENT), leader("route", "cloud-controller-manager"),
            leader(FIRST, "cloud-controller-manager")]}));
        let written = Some(written.expect("configuration"));
        for (migration, controller, lock) in [
            (&None, "node-route-controller", Some(Lock::Main)),
            (&usual, "node-route-controller", Some(Lock::Migration)),
            (&usual, "job-controller", Some(Lock::Main)),
            (&written, "service-lb-controller", Some(Lock::Migration)),
            (&written, "job-controller", Some(Lock::Migration)),
            (&written, "node-route-controller", None),
            (&written, FIRST, Some(Lock::Main)),
        ] {
            for each in [Lock::Main, Lock::Migration] {
                let runs = led(TABLE, migration.as_ref(), each).any(|c| c.name == controller);
                assert_eq!(runs, lock == Some(each), "{controller} {each:?}");
            }
        }
    }

    #[test]
    fn what_is_refused() {
        for (said, want) in [
            (json!({}), vec!["leaderName: Required value: leaderName must be set for LeaderMigrationConfiguration"]),
            (
                json!({"leaderName": "l", "controllerLeaders": [{}]}),
                vec![
                    "controllerLeaders[0].component: Required value: component must be set",
                    "controllerLeaders[0].name: Required value: name must be set",
                ],
            ),
        ] {
            assert_eq!(read(said).expect_err("refused"), want);
        }
    }
}
