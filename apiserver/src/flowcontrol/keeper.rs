//! Follows the configuration: reads FlowSchemas and PriorityLevelConfigurations again when they change, says in each
//! schema's status whether its level exists, lets levels borrow every ten seconds, and rings when a seat is due.
//! Answers for upstream's `configController`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::FlowControl;
use super::config::{Config, LevelSpec};
use super::meters;
use super::timing::{Rows, TimingFamily};
use crate::api::{Api, Reader};
use crate::machinery::identity;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::flowcontrol::flow_schema::FLOW_SCHEMAS;
use crate::registry::flowcontrol::priority_level_configuration::PRIORITY_LEVEL_CONFIGURATIONS;

/// Between adjustments of the limits.
const BORROWING: Duration = Duration::from_secs(10);
/// Several changes at once are read once.
const SETTLE: Duration = Duration::from_millis(20);
/// A status is written at most so often in so long: two servers that disagree must not write for ever.
const WRITES: usize = 6;
const WINDOW: Duration = Duration::from_secs(60);

/// A family of timings: its name, what it says, and how its rows are made.
type Shown = (&'static str, &'static str, fn(&FlowControl, &mut Rows));

const SHOWN: [Shown; 4] = [
    (
        "apiserver_flowcontrol_priority_level_request_utilization",
        "Observations, at the end of every nanosecond, of number of requests (as a fraction of the relevant limit) waiting or in any stage of execution (but only initial stage for WATCHes)",
        |flow, rows| flow.of_levels(rows, |what| matches!(what, "waiting" | "executing").then_some(Some(what))),
    ),
    (
        "apiserver_flowcontrol_priority_level_seat_utilization",
        "Observations, at the end of every nanosecond, of utilization of seats for any stage of execution (but only initial stage for WATCHes)",
        |flow, rows| flow.of_levels(rows, |what| (what == "seats").then_some(Some("executing"))),
    ),
    (
        "apiserver_flowcontrol_demand_seats",
        "Observations, at the end of every nanosecond, of (the number of seats each priority level could use) / (nominal number of seats for that level)",
        |flow, rows| flow.of_levels(rows, |what| (what == "demand").then_some(None)),
    ),
    (
        "apiserver_flowcontrol_read_vs_write_current_requests",
        "Observations, at the end of every nanosecond, of the number of requests (as a fraction of the relevant limit) waiting or in regular stage of execution",
        FlowControl::of_kinds,
    ),
];

/// Makes the timings part of the metrics.
pub(super) fn register(flow: &Arc<FlowControl>) {
    for (name, help, fill) in SHOWN {
        let flow: Weak<FlowControl> = Arc::downgrade(flow);
        let rows = move |rows: &mut Rows| {
            if let Some(flow) = flow.upgrade() {
                fill(&flow, rows);
            }
        };
        shared::metrics::register(TimingFamily::new(name, help, Box::new(rows)));
    }
}

impl FlowControl {
    /// Rows of the levels' timings: `phase` says which are shown, and as what where that is told.
    fn of_levels(&self, rows: &mut Rows, phase: fn(&'static str) -> Option<Option<&'static str>>) {
        let state = self.state.read().clone();
        for level in state.levels.values() {
            level.timings(&mut |level: &str, what, timing: &super::Timing| match phase(what) {
                Some(Some(phase)) => rows.add(timing, &[("phase", phase), ("priority_level", level)]),
                Some(None) => rows.add(timing, &[("priority_level", level)]),
                None => {}
            });
        }
    }

    /// Rows of reading and writing requests, whatever their level.
    fn of_kinds(&self, rows: &mut Rows) {
        let mut all = self.mix.0.lock();
        for (i, (count, timing)) in all.iter_mut().enumerate() {
            timing.set(self.clock.now(), *count, f64::from(self.total));
            let phase = if i < 2 { "waiting" } else { "executing" };
            let kind = if i % 2 == 0 { "readOnly" } else { "mutating" };
            rows.add(timing, &[("phase", phase), ("request_kind", kind)]);
        }
    }

    /// Writes the gauges that are only made when somebody looks.
    pub fn publish(&self) {
        for (kind, count) in ["readOnly", "mutating"].into_iter().zip(self.mix.waiting()) {
            meters::waiting(kind, count);
        }
        let state = self.state.read().clone();
        for level in state.levels.values() {
            level.publish();
        }
    }

    /// See the module. Runs until dropped; `ready` is called once the first configuration is in force.
    pub async fn follow(self: Arc<Self>, api: Api, ready: impl FnOnce()) {
        let reader = self.reader.clone();
        let mut ready = Some(ready);
        let mut statuses = StatusWriteLimiter::default();
        let mut borrow = tokio::time::interval(BORROWING);
        borrow.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut seen = (0, 0);
        loop {
            let due = self.tick();
            let ring = async {
                match due {
                    Some(at) => tokio::time::sleep_until(Instant::from_std(self.clock.started + at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.clock.bell.notified() => {}
                () = ring => {}
                _ = borrow.tick() => self.rebalance(),
                () = changed(reader.as_ref(), seen) => {
                    tokio::time::sleep(SETTLE).await;
                    seen = (reader.version(PRIORITY_LEVEL_CONFIGURATIONS), reader.version(FLOW_SCHEMAS));
                    let (levels, schemas) = (reader.list(PRIORITY_LEVEL_CONFIGURATIONS, None), reader.list(FLOW_SCHEMAS, None));
                    self.reconfigure(Config::digest(levels.iter().map(AsRef::as_ref), schemas.iter().map(AsRef::as_ref)));
                    if let Some(ready) = ready.take() {
                        ready();
                    }
                    statuses.write(&api, &levels, &schemas).await;
                }
            }
        }
    }
}

/// Waits until levels or schemas are others than those of these versions.
async fn changed(reader: &dyn Reader, seen: (u64, u64)) {
    tokio::select! {
        () = reader.changed(PRIORITY_LEVEL_CONFIGURATIONS, seen.0) => {}
        () = reader.changed(FLOW_SCHEMAS, seen.1) => {}
    }
}

/// Writes the `Dangling` condition of schemas.
#[derive(Default)]
struct StatusWriteLimiter(BTreeMap<String, VecDeque<Instant>>);

impl StatusWriteLimiter {
    /// Reports whether another write of this status is within the limit.
    fn may_write(&mut self, name: &str, now: Instant) -> bool {
        let times = self.0.entry(name.to_owned()).or_default();
        while times.front().is_some_and(|t| now.duration_since(*t) > WINDOW) {
            times.pop_front();
        }
        if times.len() >= WRITES {
            return false;
        }
        times.push_back(now);
        true
    }

    async fn write(&mut self, api: &Api, levels: &[Arc<Value>], schemas: &[Arc<Value>]) {
        let names: Vec<String> = levels.iter().filter_map(|l| LevelSpec::read(l)).map(|l| l.name).collect();
        let now = meta::now();
        let user = identity::server_user();
        for schema in schemas {
            let Some(marked) = dangling(schema, &names, &now) else { continue };
            if !self.may_write(tree::name(schema), Instant::now()) {
                continue;
            }
            // Lost to somebody else's write: his change is seen, and the status written then.
            if let Err(error) = api.update(&user, FLOW_SCHEMAS, "status", marked).await
                && !error.is_conflict()
                && !error.is_not_found()
            {
                tracing::warn!(schema = tree::name(schema), %error, "Failed to update FlowSchema status");
            }
        }
        self.0.retain(|name, _| schemas.iter().any(|s| tree::name(s) == name));
    }
}

/// A schema with its `Dangling` condition set, unless it is so already.
fn dangling(schema: &Value, levels: &[String], now: &str) -> Option<Value> {
    let level = tree::text(schema, "/spec/priorityLevelConfiguration/name");
    let found = levels.iter().any(|l| l == level);
    let begin = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = if found {
        ("False", "Found", format!("{begin} and it exists"))
    } else {
        ("True", "NotFound", format!("{begin} but there is no such object"))
    };
    let known = tree::list(schema, "/status/conditions").iter().any(|c| {
        [("/type", "Dangling"), ("/status", status), ("/reason", reason), ("/message", &message)]
            .iter()
            .all(|(field, value)| tree::text(c, field) == *value)
    });
    if known {
        return None;
    }
    let mut schema = schema.clone();
    let conditions = tree::list_mut(&mut schema, &["status", "conditions"])?;
    conditions.retain(|c| tree::text(c, "/type") != "Dangling");
    conditions.push(
        json!({"type": "Dangling", "status": status, "reason": reason, "message": message, "lastTransitionTime": now}),
    );
    Some(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_say_whether_their_level_exists() {
        let schema = json!({"metadata": {"name": "s"}, "spec": {"priorityLevelConfiguration": {"name": "l"}}});
        let missing = dangling(&schema, &[], "t").expect("marked");
        assert_eq!(
            missing["status"]["conditions"],
            json!([{"type": "Dangling", "status": "True", "reason": "NotFound", "lastTransitionTime": "t",
                "message": "This FlowSchema references the PriorityLevelConfiguration object named \"l\" but there is no such object"}])
        );
        assert_eq!(dangling(&missing, &[], "u"), None);
        let found = dangling(&missing, &["l".into()], "u").expect("marked");
        assert_eq!(found["status"]["conditions"].as_array().map(Vec::len), Some(1));
        assert_eq!(found["status"]["conditions"][0]["status"], "False");
    }

    #[test]
    fn statuses_are_not_written_for_ever() {
        let (mut statuses, now) = (StatusWriteLimiter::default(), Instant::now());
        assert_eq!((0..10).filter(|_| statuses.may_write("s", now)).count(), WRITES);
        assert!(statuses.may_write("s", now + WINDOW + Duration::from_secs(1)));
    }
}
