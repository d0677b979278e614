//! Pods from files and URLs: the tasks that read them, and the one that hands them to the pod map.

use super::Kubelet;
use crate::sources::manifest::Owner;
use crate::sources::takeover::EarlierPods;
use crate::sources::{Source, SourceSet, file, url};
use crate::workers::plan::container_hash;
use shared::run::{Shutdown, TaskGroup};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

impl Kubelet {
    /// Pods from files and URLs.
    pub(super) fn static_pods(&self, tasks: &TaskGroup, shutdown: &Shutdown) {
        let kubelet = &self.config.kubelet;
        let owner = Owner::from(&self.manager.context().settings);
        let (sender, mut receiver) = mpsc::channel::<SourceSet>(4);
        if !kubelet.static_pod_path.is_empty() {
            let path = kubelet.static_pod_path.clone().into();
            let every = kubelet.file_check_frequency.0;
            let (owner, sender, token) = (owner.clone(), sender.clone(), shutdown.token().clone());
            let runtime = Arc::clone(&self.manager.context().runtime);
            tasks.spawn("manifests", async move {
                let earlier = tokio::select! {
                    () = token.cancelled() => return,
                    earlier = EarlierPods::wait(runtime.as_ref(), container_hash) => Arc::new(earlier),
                };
                file::watch(path, owner, earlier, every, sender, token).await;
            });
        }
        if !kubelet.static_pod_url.is_empty() {
            let (address, headers) = (kubelet.static_pod_url.clone(), kubelet.static_pod_url_header.clone());
            let every = kubelet.http_check_frequency.0;
            tasks.spawn("manifest-url", url::watch(address, headers, owner, every, sender, shutdown.token().clone()));
        }
        let (manager, heard, token) = (Arc::clone(&self.manager), Arc::clone(&self.heard), shutdown.token().clone());
        tasks.spawn("static-pods", async move {
            loop {
                let set = tokio::select! {
                    () = token.cancelled() => return,
                    set = receiver.recv() => set,
                };
                let Some(set) = set else { return };
                let flag = if set.source == Source::File { &heard.file } else { &heard.url };
                manager.set_static(set);
                flag.store(true, Ordering::Relaxed);
            }
        });
    }
}
