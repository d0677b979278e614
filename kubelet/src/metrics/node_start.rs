//! Metrics of the node's own start: from the machine's boot to the first time that the node is Ready. Answers for
//! upstream's `NodeStartupLatencyTracker`: a kubelet whose node was registered before tells nothing.

use parking_lot::Mutex;

use super::set;

/// Times in seconds since 1970, as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Moments {
    attempted: Option<f64>,
    registered: Option<f64>,
    ready: bool,
}

static MOMENTS: Mutex<Moments> = Mutex::new(Moments { attempted: None, registered: None, ready: false });

/// Events in the life of a node that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeEvent {
    /// The node is about to be registered.
    Registering,
    /// The API server has made the node, which was not there.
    RegisteredNew,
    /// The node's status says that it is Ready.
    Ready,
}

/// Families with what they tell.
type Told = Vec<(&'static str, &'static str, f64)>;

impl Moments {
    /// Notes an event; returns what is known by it.
    fn note(&mut self, event: NodeEvent, now: f64, boot: f64, start: f64) -> Told {
        match (event, self.attempted, self.registered) {
            (NodeEvent::Registering, None, _) => {
                self.attempted = Some(now);
                Vec::new()
            }
            (NodeEvent::RegisteredNew, Some(attempted), None) => {
                self.registered = Some(now);
                let before = ("kubelet_node_startup_pre_kubelet_duration_seconds", "before the kubelet", start - boot);
                let mut told: Told = (boot > 0.0).then_some(before).into_iter().collect();
                told.extend([
                    (
                        "kubelet_node_startup_pre_registration_duration_seconds",
                        "before registration",
                        attempted - start,
                    ),
                    ("kubelet_node_startup_registration_duration_seconds", "of registration", now - attempted),
                ]);
                told
            }
            (NodeEvent::Ready, _, Some(registered)) if !self.ready => {
                self.ready = true;
                let name = "kubelet_node_startup_post_registration_duration_seconds";
                let mut told = vec![(name, "after registration", now - registered)];
                if boot > 0.0 {
                    told.push(("kubelet_node_startup_duration_seconds", "in all", now - boot));
                }
                told
            }
            _ => Vec::new(),
        }
    }
}

/// Shows the families before anything is known.
pub(super) fn show() {
    for (name, what) in [
        ("kubelet_node_startup_pre_kubelet_duration_seconds", "before the kubelet"),
        ("kubelet_node_startup_pre_registration_duration_seconds", "before registration"),
        ("kubelet_node_startup_registration_duration_seconds", "of registration"),
        ("kubelet_node_startup_post_registration_duration_seconds", "after registration"),
        ("kubelet_node_startup_duration_seconds", "in all"),
    ] {
        set(name, &help(what), &[], 0.0);
    }
}

fn help(what: &str) -> String {
    format!("[ALPHA] Duration of the node's start in seconds, {what}")
}

/// Notes an event on a machine that was started at `boot`, in nanoseconds since 1970.
pub(crate) fn note(event: NodeEvent, boot: i64) {
    let seconds = |nanos: i64| std::time::Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)).as_secs_f64();
    let now = seconds(i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0));
    let start = now - shared::metrics::uptime().as_secs_f64();
    let told = MOMENTS.lock().note(event, now, seconds(boot), start);
    for (name, what, value) in told {
        set(name, &help(what), &[], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_new_node_is_told_in_its_parts() {
        use NodeEvent::{Ready, RegisteredNew, Registering};
        let mut moments = Moments::default();
        let mut values = |event, now| -> Vec<f64> {
            moments.note(event, now, 100.0, 110.0).into_iter().map(|(.., value)| value).collect()
        };
        for (event, now, expected) in [
            (Ready, 111.0, vec![]),
            (RegisteredNew, 111.0, vec![]),
            (Registering, 112.0, vec![]),
            (Registering, 113.0, vec![]),
            (RegisteredNew, 116.0, vec![10.0, 2.0, 4.0]),
            (RegisteredNew, 117.0, vec![]),
            (Ready, 121.0, vec![5.0, 21.0]),
            (Ready, 130.0, vec![]),
        ] {
            assert_eq!(values(event, now), expected, "{event:?} at {now}");
        }
        let mut known_before = Moments::default();
        known_before.note(Registering, 112.0, 100.0, 110.0);
        assert!(known_before.note(Ready, 113.0, 100.0, 110.0).is_empty(), "the node was there");
    }
}
