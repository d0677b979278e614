//! Times at which pods were seen and bound, as one more watch sees them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use bytes::{Buf as _, Bytes, BytesMut};
use proto::protobuf::{self, fields};

use crate::http2::PROTOBUF;
use crate::world::World;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(180);

/// A watch of all pods from now on.
pub struct Pods {
    frames: crate::http2::Watch,
    buffer: BytesMut,
    added: HashMap<String, Instant>,
    /// Name, when it was seen, and when it was seen to be bound.
    pub bound: Vec<(Option<Instant>, Instant)>,
}

impl Pods {
    /// Begins.
    pub async fn watch(world: &World) -> anyhow::Result<Self> {
        let mut client = world.client().await?;
        let list = client.get(&format!("{}?limit=1", super::PODS), "application/json").await?;
        let list: serde_json::Value = serde_json::from_slice(&list)?;
        let from = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let path = format!("{}?watch=true&resourceVersion={from}", super::PODS);
        let frames = client.watch(&path, PROTOBUF).await?;
        Ok(Self { frames, buffer: BytesMut::new(), added: HashMap::new(), bound: Vec::new() })
    }

    /// Reads on until so many pods have been seen to be bound.
    pub async fn until_bound(&mut self, count: usize) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.bound.len() < count {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(chunk) = tokio::time::timeout(left, self.frames.next()).await else {
                bail!("{} of {count} pods are bound", self.bound.len());
            };
            self.buffer.extend_from_slice(&chunk?);
            let now = Instant::now();
            while let Some(length) = self.buffer.first_chunk::<4>().map(|l| u32::from_be_bytes(*l) as usize)
                && self.buffer.len() >= 4 + length
            {
                self.buffer.advance(4);
                let frame = self.buffer.split_to(length).freeze();
                self.note(&frame, now)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, frame: &Bytes, now: Instant) -> anyhow::Result<()> {
        let (mut kind, mut name, mut node) = (String::new(), String::new(), String::new());
        for field in fields(frame) {
            let (number, value) = field?;
            if number == 1 {
                kind = value.text("type")?;
                continue;
            }
            for field in fields(value.bytes("object")?) {
                let pod = protobuf::unwrap(field?.1.bytes("raw")?)?.raw;
                for field in fields(pod) {
                    let (number, value) = field?;
                    for field in fields(value.bytes("part")?) {
                        match (number, field?) {
                            (1, (1, value)) => name = value.text("name")?,
                            (2, (10, value)) => node = value.text("nodeName")?,
                            _ => {}
                        }
                    }
                }
            }
        }
        match kind.as_str() {
            "ADDED" if node.is_empty() => {
                self.added.insert(name, now);
            }
            "MODIFIED" if !node.is_empty() => self.bound.push((self.added.remove(&name), now)),
            _ => {}
        }
        Ok(())
    }

    /// The delay that so many of all pods did not exceed, in milliseconds.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        let delay = |(seen, bound): &(Option<Instant>, Instant)| Some((*bound - (*seen)?).as_secs_f64() * 1e3);
        let mut all: Vec<f64> = self.bound.iter().filter_map(delay).collect();
        all.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a quantile's place in a list"
        )]
        all.get((all.len() as f64 * q) as usize).copied().unwrap_or(f64::NAN)
    }
}
