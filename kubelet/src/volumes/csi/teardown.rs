//! The end of volumes: unpublished for each pod, unstaged once no pod has them. What cannot be done now stays on the disk, and
//! is tried again.

use super::driver::Capability;
use super::error::{CsiError, UnpublishError};
use super::layout::{Key, Published, Record, Staged};
use super::operations::{Csi, remove_mount};
use super::volume;
use crate::blocking::{UNMOUNTING, blocking};
use crate::volumes::metrics::{self, Plugin, VolumeOperation};
use std::collections::HashSet;
use std::time::Instant;

impl Csi {
    /// Unpublishes every volume of a pod, and unstages those that no other pod has.
    ///
    /// # Errors
    /// A driver is away, or failed; what is left is on the disk, and is tried again by the next call.
    pub(crate) async fn unpublish(&self, uid: &str) -> Result<(), UnpublishError> {
        let (layout, of) = (self.layout.clone(), uid.to_owned());
        let mut unused = self.want_nothing(uid);
        let mut outcome = Ok(());
        for found in blocking(move || Ok(layout.of_pod(&of))).await? {
            let (name, key) = (found.name.clone(), found.record.as_ref().map(Record::key));
            let undone = self.unpublish_one(found).await;
            unused.extend(key);
            if let Err(cause) = undone {
                outcome = outcome.and(Err(UnpublishError::Volume { volume: name, cause: Box::new(cause) }));
            }
        }
        if outcome.is_ok() {
            self.attachments.forget(uid);
        }
        // What cannot be unstaged now is left to the sweep: the pod has nothing of it any more.
        self.unstage_all(|record| unused.contains(&record.key())).await;
        outcome
    }

    /// Forgets what a pod wants, and returns it.
    fn want_nothing(&self, uid: &str) -> HashSet<Key> {
        self.selinux.forget(uid);
        let mut done = self.done.lock();
        done.forget_labels(uid);
        let (own, others) = std::mem::take(&mut done.wanted).into_iter().partition(|(wanting, _)| wanting == uid);
        done.wanted = others;
        let own: HashSet<(String, Key)> = own;
        own.into_iter().map(|(_, key)| key).collect()
    }

    async fn unpublish_one(&self, found: Published) -> Result<(), CsiError> {
        let Published { uid, name, is_block, record } = found;
        let target = self.layout.target(&uid, &name, is_block);
        if is_block {
            self.blocks.let_go(&self.layout.bound(&name).join(&uid)).await?;
        }
        let Some(record) = record else {
            // A kubelet died before it asked the driver for anything.
            let forgotten = self.forget_published(&uid, &name, is_block, target).await;
            metrics::force_cleaned(forgotten.is_err());
            return Ok(forgotten?);
        };
        let _guard = self.locks.lock(&record.key()).await;
        let unknown = |cause| CsiError::NoClient { step: "Unmounter.TearDownAt failed to get CSI client", cause };
        let driver = self.drivers.get(&record.driver_name).map_err(unknown)?;
        self.done.lock().published.remove(&(uid.clone(), name.clone()));
        let begun = Instant::now();
        let unpublished = driver.unpublish(&record.volume_handle, &target).await;
        let operation = if is_block { VolumeOperation::Unmap } else { VolumeOperation::Unmount };
        metrics::ended(&Plugin::driver(&record.driver_name, false), operation, begun, unpublished.is_err());
        unpublished?;
        Ok(self.forget_published(&uid, &name, is_block, target).await?)
    }

    /// Unstages a volume that no pod has, and that the caller has locked.
    async fn unstage_unused(&self, found: &Staged) -> Result<(), CsiError> {
        let key = found.record.key();
        let is_wanted = self.done.lock().wanted.iter().any(|(_, wanted)| *wanted == key);
        if is_wanted || !self.users_of(&key).await?.is_empty() {
            return Ok(());
        }
        self.unstage(found).await
    }

    /// Unstages a volume that no pod has published, and that the caller has locked.
    pub(super) async fn unstage(&self, found: &Staged) -> Result<(), CsiError> {
        let Staged { record, name, is_block } = found;
        let key = record.key();
        let (driver, handle) = (&record.driver_name, &record.volume_handle);
        let folder = self.layout.staged(driver, handle, name, *is_block);
        let staging = self.layout.staging(driver, handle, name, *is_block);
        self.done.lock().staged.remove(&key);
        if folder.exists() {
            let step = "attacher.UnmountDevice failed to get CSI client";
            let unknown = |cause| CsiError::NoClient { step, cause };
            let driver = self.drivers.get(driver).map_err(unknown)?;
            let able = driver.capabilities().await?;
            if able.contains(&Capability::StageUnstageVolume) {
                let begun = Instant::now();
                let unstaged = driver.unstage(handle, &staging).await;
                let operation = if *is_block { VolumeOperation::UnmapDevice } else { VolumeOperation::UnmountDevice };
                metrics::ended(&Plugin::driver(&record.driver_name, false), operation, begun, unstaged.is_err());
                unstaged?;
            }
            let name = is_block.then(|| name.clone());
            let layout = self.layout.clone();
            let remove = move || {
                remove_mount(&folder, &staging)?;
                name.map_or(Ok(()), |name| layout.remove_device(&name))
            };
            UNMOUNTING.run(remove).await?;
        }
        self.attachments.unstage(&volume::unique_name(&key.0, &key.1));
        Ok(())
    }

    /// Unstages what no pod has: the node died, or a driver failed.
    pub(crate) async fn sweep(&self) {
        self.unstage_all(|_| true).await;
    }

    async fn unstage_all(&self, is_meant: impl Fn(&Record) -> bool) {
        let layout = self.layout.clone();
        let Ok(staged) = blocking(move || Ok(layout.all_staged())).await else { return };
        for found in staged.into_iter().filter(|found| is_meant(&found.record)) {
            let key = found.record.key();
            let _guard = self.locks.lock(&key).await;
            if let Err(error) = self.unstage_unused(&found).await {
                tracing::warn!(driver = key.0, handle = key.1, %error, "UnmountDevice failed");
            }
        }
    }
}
