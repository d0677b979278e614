//! A worker's part in restarts of containers: their back-off, and the restart of all of a pod.
//! Answers for `doBackOff` of upstream's kuberuntime.

use super::kill;
use super::observed::Observed;
use super::restart_all;
use super::worker::Worker;
use crate::events::{EventType, field_path};
use crate::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use shared::flags::format_duration;
use std::sync::Arc;

impl Worker {
    /// Keeps the crash-loop back-off: true when the container has to wait.
    pub(super) fn backed_off(&mut self, pod: &Pod, name: &str, ended: Option<Timestamp>) -> bool {
        let Some(ended) = ended else { return false };
        let now = Timestamp::now();
        if self.crash.remaining(name, ended, now).is_some() {
            let describe = pods::describe(pod);
            let first = self.waiting.get(name).is_none_or(|w| w.0 != "CrashLoopBackOff");
            if first {
                let text = format!("Back-off restarting failed container {name} in pod {describe}");
                self.cx.events.pod(pod, &field_path(pod, name), EventType::Warning, "BackOff", &text);
            }
            let delay = format_duration(self.crash.delay(name));
            let text = format!("back-off {delay} restarting failed container={name} pod={describe}");
            self.waiting.insert(name.to_owned(), ("CrashLoopBackOff".to_owned(), text));
            return true;
        }
        self.crash.next(name, ended, now);
        false
    }

    /// Kills all containers that run, and once the back-off of the one that asked for it is over removes all that were made.
    pub(super) async fn restart_all(
        &mut self,
        pod: &Pod,
        observed: &Observed,
        cause: &str,
        ended: Option<Timestamp>,
    ) -> Result<(), ()> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let (alive, made) = restart_all::reset(spec, observed);
        let cx = Arc::clone(&self.cx);
        let killed = futures::future::join_all(alive.into_iter().map(|found| kill::at_once(&cx, pod, found))).await;
        killed.into_iter().collect::<Result<(), _>>().map_err(drop)?;
        if self.backed_off(pod, cause, ended) {
            return Ok(());
        }
        for found in made {
            if let Err(error) = cx.runtime.remove_container(&found.id).await
                && !error.is_not_found()
            {
                tracing::warn!(pod = %pods::describe(pod), id = found.id, %error, "Could not remove container");
                return Err(());
            }
            self.waiting.remove(&found.name);
        }
        Ok(())
    }
}
