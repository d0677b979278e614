//! Image garbage: when the image file system fills up, images that nothing uses go, the longest unused first.
//! Answers for upstream's `pkg/kubelet/images/image_gc_manager.go` (`GarbageCollect`, `freeSpace`, `detectImages`).

use crate::config::KubeletConfiguration;
use crate::cri::{CriError, v1};
use crate::events::EventType;
use crate::stats::machine;
use crate::workers::context::WorkerContext;
use jiff::Timestamp;
use parking_lot::Mutex;
use shared::flags::format_duration;
use shared::status::field::aggregate;
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
    if used_percent(disk) < policy.high {
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
async fn used(cx: &WorkerContext) -> Result<HashSet<String>, CriError> {
    let containers = cx.runtime.list_containers(None).await?;
    let names = containers
        .into_iter()
        .flat_map(|c| [c.image_ref, c.image_id, c.image.map(|image| image.image).unwrap_or_default()]);
    Ok(names.filter(|name| !name.is_empty()).collect())
}

/// Reasons why images were not collected.
#[derive(Debug, thiserror::Error)]
enum ImageGcError {
    #[error(transparent)]
    Runtime(#[from] CriError),
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    #[error("wanted to free images older than {age}, encountered errors in image deletion: {errors}")]
    Age { age: String, errors: String },
    #[error("wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {errors}")]
    Removal { wanted: u64, freed: u64, errors: String },
    #[error("{0}")]
    Full(String),
}

/// Upstream's words on a disk that stays full.
fn full(disk: &machine::Disk, freed: u64) -> String {
    let (used, size) = (used_percent(disk), format_size(disk.capacity));
    format!(
        "Insufficient free disk space on the node's image filesystem ({used}% of {size} used). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
    )
}

/// A size with one decimal in the unit that suits it.
fn format_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = usize::try_from(bytes.max(1).ilog2() / 10).unwrap_or(0).min(units.len() - 1);
    #[expect(clippy::cast_precision_loss, reason = "a size for a message")]
    let size = bytes as f64 / (1u64 << (10 * unit)) as f64;
    if unit == 0 { format!("{bytes} B") } else { format!("{size:.1} {}", units[unit]) }
}

fn used_percent(disk: &machine::Disk) -> u64 {
    100 - disk.available.min(disk.capacity) * 100 / disk.capacity.max(1)
}

/// Removes images, up to `bytes` in all, for want of `"space"` or for their `"age"`. Returns what was freed and what failed.
async fn remove(cx: &WorkerContext, images: Vec<v1::Image>, bytes: u64, reason: &str) -> (u64, Vec<String>) {
    let (mut freed, mut failed) = (0u64, Vec::new());
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
            Err(error) => {
                tracing::warn!(image = image.id, %error, "Could not remove image");
                failed.push(error.to_string());
            }
        }
    }
    (freed, failed)
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
        let mut has_failed = false;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            let span = self.cx.tracer.root(SCOPE, "Images/GarbageCollect", SpanKind::Internal);
            let collected = traces::within(span.as_ref(), Box::pin(self.collect())).await;
            has_failed = self.report(collected.err(), has_failed);
        }
    }

    /// Tells of failures; those that repeat are events. True where there was one.
    fn report(&self, failure: Option<ImageGcError>, has_failed: bool) -> bool {
        match &failure {
            Some(error) if has_failed => {
                tracing::error!(%error, "Image garbage collection failed multiple times in a row");
                self.cx.events.node(EventType::Warning, "ImageGCFailed", &error.to_string());
            }
            Some(error) => tracing::error!(%error, "Image garbage collection failed once"),
            None => {}
        }
        failure.is_some()
    }

    /// Images that nothing uses and that are old enough to go, the longest unused first. One that was pulled just now may
    /// be about to be used.
    async fn idle(&self) -> Result<Vec<(Instant, v1::Image)>, CriError> {
        let since = Timestamp::now();
        let used = used(&self.cx).await?;
        let images = self.cx.runtime.list_images().await?;
        if let Some(records) = self.cx.images.records() {
            records.prune(&images.iter().map(|image| image.id.clone()).collect(), since);
        }
        let in_use = images.iter().map(|image| is_kept(image, &used)).collect::<Vec<_>>();
        let mut last_used = self.last_used.lock();
        // What is there at the first look may have been there before the kubelet, what comes later was pulled meanwhile.
        let unseen = if last_used.is_none() { self.started } else { Instant::now() };
        let last_used = last_used.get_or_insert_default();
        last_used.retain(|id, _| images.iter().any(|image| image.id == *id));
        Ok(old_enough(images.into_iter().zip(in_use), last_used, unseen, self.policy.least_age))
    }

    /// Removes all images that nothing uses. Answers for upstream's `DeleteUnusedImages`.
    pub async fn remove_unused(&self) {
        let idle = self.idle().await.unwrap_or_default();
        remove(&self.cx, idle.into_iter().map(|(_, image)| image).collect(), u64::MAX, "space").await;
    }

    async fn collect(&self) -> Result<(), ImageGcError> {
        let (cx, policy) = (&*self.cx, &self.policy);
        let mut idle = self.idle().await?;
        if !policy.greatest_age.is_zero() {
            let (old, young) = idle.into_iter().partition(|(seen, _)| seen.elapsed() >= policy.greatest_age);
            idle = young;
            let old: Vec<(Instant, v1::Image)> = old;
            let (_, failed) = remove(cx, old.into_iter().map(|(_, image)| image).collect(), u64::MAX, "age").await;
            if !failed.is_empty() {
                return Err(ImageGcError::Age {
                    age: format_duration(policy.greatest_age),
                    errors: aggregate(&failed),
                });
            }
        }
        let Some(disk) = image_disk(cx).await? else { return Ok(()) };
        if disk.capacity == 0 {
            cx.events.node(EventType::Warning, "InvalidDiskCapacity", &ImageGcError::NoCapacity.to_string());
            return Err(ImageGcError::NoCapacity);
        }
        let wanted = to_free(&disk, policy);
        if wanted == 0 {
            return Ok(());
        }
        let (freed, failed) = remove(cx, idle.into_iter().map(|(_, image)| image).collect(), wanted, "space").await;
        if !failed.is_empty() {
            return Err(ImageGcError::Removal { wanted, freed, errors: aggregate(&failed) });
        }
        if freed < wanted {
            let text = full(&disk, freed);
            cx.events.node(EventType::Warning, "FreeDiskSpaceFailed", &text);
            return Err(ImageGcError::Full(text));
        }
        Ok(())
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

async fn image_disk(cx: &WorkerContext) -> Result<Option<machine::Disk>, CriError> {
    let answer = cx.runtime.image_fs().await?;
    let first = answer.image_filesystems.first().and_then(|first| first.fs_id.as_ref());
    Ok(first.and_then(|id| machine::disk(id.mountpoint.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::tests::Recorded;
    use crate::workers::tests::fake::FakeNode;

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

    #[tokio::test]
    async fn failures_that_repeat_are_events_with_upstreams_texts() {
        let root = tempfile::tempdir().expect("a folder");
        let events = Arc::<Recorded>::default();
        let node = FakeNode::with(root.path(), |cx| cx.events = Arc::<Recorded>::clone(&events));
        let policy = ImageGcPolicy { high: 85, low: 80, least_age: Duration::ZERO, greatest_age: Duration::ZERO };
        let collector = ImageCollector::new(node.cx, policy);
        let failure = || ImageGcError::Removal { wanted: 200, freed: 7, errors: "rpc error".to_owned() };
        assert!(collector.report(Some(failure()), false) && events.taken().is_empty());
        assert!(collector.report(Some(failure()), true) && !collector.report(None, true));
        let text = "wanted to free 200 bytes, but freed 7 bytes space with errors in image deletion: rpc error";
        assert_eq!(events.taken(), [format!("Warning ImageGCFailed {text}")]);
        let disk = machine::Disk { capacity: 107_374_182_400, available: 10_737_418_240, inodes: 0, inodes_free: 0 };
        let text = "Insufficient free disk space on the node's image filesystem (90% of 100.0 GiB used). Failed to free sufficient space by deleting unused images (freed 5 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.";
        assert_eq!(full(&disk, 5), text);
        assert_eq!([0, 1023, 1536].map(format_size), ["0 B", "1023 B", "1.5 KiB"]);
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
