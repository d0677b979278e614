//! Image garbage: when the image file system fills up, images that nothing uses go, the longest unused first.
//! Answers for upstream's `pkg/kubelet/images/image_gc_manager.go` (`GarbageCollect`, `freeSpace`, `detectImages`).

use crate::config::KubeletConfiguration;
use crate::cri::v1;
use crate::events::EventType;
use crate::stats::machine;
use crate::workers::context::WorkerContext;
use jiff::Timestamp;
use parking_lot::Mutex;
use shared::traces::{self, SpanKind};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Instrumentation scope of its spans.
const SCOPE: &str = "k8s.io/kubernetes/pkg/kubelet/images";
/// Interval at which the image file system is looked at.
const PERIOD: Duration = Duration::from_secs(300);

/// Thresholds of image garbage collection.
#[derive(Clone, Copy, Debug)]
pub struct ImageGcPolicy {
    high: u64,
    low: u64,
    least_age: Duration,
    greatest_age: Duration,
}

impl From<&KubeletConfiguration> for ImageGcPolicy {
    fn from(kubelet: &KubeletConfiguration) -> Self {
        let percent = |value: i32| u64::try_from(value).unwrap_or(100).min(100);
        Self {
            high: percent(kubelet.image_gc_high_threshold_percent),
            low: percent(kubelet.image_gc_low_threshold_percent),
            least_age: kubelet.image_minimum_gc_age.0,
            greatest_age: kubelet.image_maximum_gc_age.0,
        }
    }
}

/// Bytes to free so that usage falls from above `high` to `low` percent.
fn to_free(disk: &machine::Disk, policy: &ImageGcPolicy) -> u64 {
    if disk.capacity == 0 || policy.high >= 100 {
        return 0;
    }
    let used = 100 - disk.available.min(disk.capacity) * 100 / disk.capacity;
    if used < policy.high {
        return 0;
    }
    (disk.capacity * (100 - policy.low) / 100).saturating_sub(disk.available)
}

fn is_kept(image: &v1::Image, used: &HashSet<String>) -> bool {
    let names = || image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
    // Every sandbox needs the pause image, but no container names it.
    image.pinned || names().any(|name| used.contains(name)) || image.repo_tags.iter().any(|tag| tag.contains("/pause:"))
}

/// Names of images that containers use.
async fn used(cx: &WorkerContext) -> Option<HashSet<String>> {
    let containers = cx.runtime.list_containers(None).await.ok()?;
    let names = containers
        .into_iter()
        .flat_map(|c| [c.image_ref, c.image_id, c.image.map(|image| image.image).unwrap_or_default()]);
    Some(names.filter(|name| !name.is_empty()).collect())
}

/// Removes images, up to `bytes` in all, for want of `"space"` or for their `"age"`.
async fn remove(cx: &WorkerContext, images: Vec<v1::Image>, bytes: u64, reason: &str) -> u64 {
    let mut freed = 0u64;
    for image in images {
        if freed >= bytes {
            break;
        }
        tracing::info!(image = image.id, size = image.size, "Removing image to free bytes");
        let spec = v1::ImageSpec { image: image.id.clone(), ..v1::ImageSpec::default() };
        match cx.runtime.remove_image(spec).await {
            Ok(()) => {
                crate::metrics::image_removed(reason);
                freed = freed.saturating_add(image.size);
            }
            Err(error) => tracing::warn!(image = image.id, %error, "Could not remove image"),
        }
    }
    freed
}

/// The collector of image garbage, which the eviction of pods asks first.
pub struct ImageCollector {
    cx: Arc<WorkerContext>,
    policy: ImageGcPolicy,
    started: Instant,
    /// Time when each image was last seen in use, or first seen; nothing before the first look.
    last_used: Mutex<Option<HashMap<String, Instant>>>,
}

impl ImageCollector {
    /// A collector that has seen no image yet.
    pub fn new(cx: Arc<WorkerContext>, policy: ImageGcPolicy) -> Self {
        Self { cx, policy, started: Instant::now(), last_used: Mutex::default() }
    }

    /// Runs until shutdown.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            let span = self.cx.tracer.root(SCOPE, "Images/GarbageCollect", SpanKind::Internal);
            traces::within(span.as_ref(), Box::pin(self.collect())).await;
        }
    }

    /// Images that nothing uses and that are old enough to go, the longest unused first. One that was pulled just now may
    /// be about to be used.
    async fn idle(&self) -> Option<Vec<(Instant, v1::Image)>> {
        let since = Timestamp::now();
        let used = used(&self.cx).await?;
        let images = self.cx.runtime.list_images().await.ok()?;
        if let Some(records) = self.cx.images.records() {
            records.prune(&images.iter().map(|image| image.id.clone()).collect(), since);
        }
        let in_use = images.iter().map(|image| is_kept(image, &used)).collect::<Vec<_>>();
        let mut last_used = self.last_used.lock();
        // What is there at the first look may have been there before the kubelet, what comes later was pulled meanwhile.
        let unseen = if last_used.is_none() { self.started } else { Instant::now() };
        let last_used = last_used.get_or_insert_default();
        last_used.retain(|id, _| images.iter().any(|image| image.id == *id));
        Some(old_enough(images.into_iter().zip(in_use), last_used, unseen, self.policy.least_age))
    }

    /// Removes all images that nothing uses. Answers for upstream's `DeleteUnusedImages`.
    pub async fn remove_unused(&self) {
        let idle = self.idle().await.unwrap_or_default();
        remove(&self.cx, idle.into_iter().map(|(_, image)| image).collect(), u64::MAX, "space").await;
    }

    async fn collect(&self) {
        let (cx, policy) = (&*self.cx, &self.policy);
        let Some(idle) = self.idle().await else { return };
        if !policy.greatest_age.is_zero() {
            let old = idle.iter().filter(|(seen, _)| seen.elapsed() >= policy.greatest_age);
            remove(cx, old.map(|(_, image)| image.clone()).collect(), u64::MAX, "age").await;
        }
        let Some(disk) = image_disk(cx).await else { return };
        let wanted = to_free(&disk, policy);
        if wanted == 0 {
            return;
        }
        let freed = remove(cx, idle.into_iter().map(|(_, image)| image).collect(), wanted, "space").await;
        if freed < wanted {
            let text = format!(
                "Insufficient free disk space on the node's image filesystem (usage above {}%). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
                policy.high
            );
            cx.events.node(EventType::Warning, "FreeDiskSpaceFailed", &text);
        }
    }
}

/// Of images, each with whether it is in use, those unused for `least_age`, the longest unused first. One that is seen for
/// the first time counts as used last at `unseen`.
fn old_enough(
    images: impl Iterator<Item = (v1::Image, bool)>,
    last_used: &mut HashMap<String, Instant>,
    unseen: Instant,
    least_age: Duration,
) -> Vec<(Instant, v1::Image)> {
    let now = Instant::now();
    let mut idle: Vec<(Instant, v1::Image)> = Vec::new();
    for (image, in_use) in images {
        let seen = last_used.entry(image.id.clone()).or_insert(if in_use { now } else { unseen });
        if in_use {
            *seen = now;
        } else if seen.elapsed() >= least_age {
            idle.push((*seen, image));
        }
    }
    idle.sort_by_key(|(seen, _)| *seen);
    idle
}

async fn image_disk(cx: &WorkerContext) -> Option<machine::Disk> {
    let answer = cx.runtime.image_fs().await.ok()?;
    let path = answer.image_filesystems.first()?.fs_id.as_ref()?.mountpoint.clone();
    machine::disk(path.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_is_cleaned() {
        let policy = ImageGcPolicy { high: 85, low: 80, least_age: Duration::ZERO, greatest_age: Duration::ZERO };
        let disk = |available: u64| machine::Disk { capacity: 1000, available, inodes: 0, inodes_free: 0 };
        assert_eq!(
            [to_free(&disk(500), &policy), to_free(&disk(100), &policy), to_free(&disk(0), &policy)],
            [0, 100, 200]
        );
    }

    #[test]
    fn image_that_was_pulled_just_now_stays() {
        let image = |id: &str| v1::Image { id: id.into(), ..v1::Image::default() };
        let (mut last_used, hour) = (HashMap::new(), Duration::from_secs(3600));
        let Some(started) = Instant::now().checked_sub(hour) else { return };
        let mut idle = |images: &[(&str, bool)], unseen: Instant| -> Vec<String> {
            let images = images.iter().map(|(id, in_use)| (image(id), *in_use));
            let idle = old_enough(images, &mut last_used, unseen, Duration::from_secs(120));
            idle.into_iter().map(|(_, image)| image.id).collect()
        };
        assert_eq!(idle(&[("old", false), ("busy", true)], started), ["old"]);
        assert_eq!(idle(&[("old", false), ("busy", false), ("pulled", false)], Instant::now()), ["old"]);
    }

    #[test]
    fn used_and_pinned_images_stay() {
        let used = HashSet::from(["sha256:1".to_owned()]);
        let image = |id: &str, tag: &str, pinned: bool| v1::Image {
            id: id.into(),
            repo_tags: vec![tag.into()],
            pinned,
            ..v1::Image::default()
        };
        assert!(is_kept(&image("sha256:1", "a:1", false), &used));
        assert!(is_kept(&image("sha256:2", "registry.k8s.io/pause:3.10", false), &used));
        assert!(is_kept(&image("sha256:3", "b:1", true), &used));
        assert!(!is_kept(&image("sha256:4", "c:1", false), &used));
    }
}
