//! The end of a pod: stopping it, giving back what it had, removing its traces.
//! Answers for upstream's `SyncTerminatingPod`, `SyncTerminatedPod` and `completeTerminated`.

use super::kill;
use super::worker::{RETRY, Worker};
use crate::blocking::REMOVAL;
use crate::pods;
use crate::trees;
use std::sync::Arc;
use std::time::Duration;

impl Worker {
    /// Stops the pod, again with less time when that is asked for meanwhile.
    pub(super) async fn terminate(&mut self) {
        self.cx.probes.stop_liveness(&self.uid);
        let mut failures = 0u32;
        loop {
            let state = self.mailbox.snapshot();
            let grace = state.grace();
            let Some(observed) = self.observe().await else {
                tokio::time::sleep(RETRY.0).await;
                continue;
            };
            self.publish(&state.pod, &observed, true, false);
            let result = {
                let stop = kill::pod(&self.cx, &state.pod, &observed, grace, &self.hooks_run);
                let mut stop = std::pin::pin!(stop);
                loop {
                    tokio::select! {
                        result = &mut stop => break Some(result),
                        () = self.mailbox.notify.notified() => {
                            if self.mailbox.snapshot().grace() < grace {
                                break None;
                            }
                        }
                    }
                }
            };
            match result {
                None => {}
                Some(Ok(())) => {
                    let Some(observed) = self.observe().await else { continue };
                    if observed.is_stopped() {
                        self.release().await;
                        let pod = self.mailbox.pod();
                        self.publish(&pod, &observed, true, true);
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Some(Err(error)) => {
                    tracing::warn!(pod = %pods::describe(&state.pod), %error, "Could not stop pod");
                    failures += 1;
                    tokio::time::sleep((RETRY.0 * failures).min(RETRY.1)).await;
                }
            }
        }
    }

    /// Gives back what only containers use, once none runs and before anybody is told so: who waits for devices and processors
    /// does not wait for volumes.
    async fn release(&self) {
        let cx = &self.cx;
        cx.devices.retain(|uid| uid != self.uid);
        cx.cpus.retain(|uid| uid != self.uid);
        cx.memory.retain(|uid| uid != self.uid);
        let mut failures = 0u32;
        while let Err(error) = cx.claims.unprepare(&self.uid).await {
            tracing::warn!(pod_uid = %self.uid, %error, "Could not give back the resource claims of the pod");
            failures += 1;
            tokio::time::sleep((RETRY.0 * failures).min(RETRY.1)).await;
        }
    }

    /// Gives back volumes and cgroups; then the pod may leave the API server.
    pub(super) async fn reclaim(&mut self) {
        self.cx.probes.remove(&self.uid);
        self.release().await;
        let mut failures = 0u32;
        loop {
            let volumes = self.cx.volumes.unmount(&self.uid).await.map_err(|e| e.to_string());
            let (cx, uid) = (Arc::clone(&self.cx), self.uid.clone());
            let cgroup = tokio::task::spawn_blocking(move || cx.cgroups.remove_pod(&uid)).await;
            let cgroup = cgroup.map_err(|e| e.to_string()).and_then(|r| r.map_err(|e| e.to_string()));
            match volumes.and(cgroup) {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(pod_uid = %self.uid, error, "Could not give back everything of the pod");
                    failures += 1;
                    tokio::time::sleep((RETRY.0 * failures).min(RETRY.1)).await;
                }
            }
        }
        self.cx.images.forget(&self.uid);
        if let Some(userns) = &self.cx.userns {
            userns.release(&self.uid);
        }
        self.mailbox.given_back.cancel();
        let pod = self.mailbox.pod();
        if let Some(status) = self.published.clone() {
            self.cx.statuses.reclaimed(&pod, &status);
        }
    }

    /// Removes every trace.
    pub(super) async fn erase(&mut self) {
        let pod = self.mailbox.pod();
        if let Some(observed) = self.observe().await {
            kill::remove(&self.cx, &observed).await;
        }
        let (settings, uid) = (&self.cx.settings, &self.uid);
        let logs = settings.pod_log_dir(pods::namespace(&pod), pods::name(&pod), uid);
        for folder in [logs, settings.pod_dir(uid)] {
            // What is left is found by the garbage collection.
            if let Err(error) = REMOVAL.run(move || trees::remove(&folder)).await {
                tracing::warn!(pod_uid = %uid, %error, "Could not remove a folder of the pod");
            }
        }
        let links = settings.container_logs_dir.clone();
        let _ = tokio::task::spawn_blocking(move || super::container::unlink_dangling(&links)).await;
        self.cx.statuses.forget(uid);
    }
}
