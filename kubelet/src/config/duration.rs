//! Durations as Go writes them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::time::Duration;

/// A duration that reads and writes Go's form (`1m30s`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        shared::flags::parse_duration(&text)
            .map(Self)
            .map_err(|_| D::Error::custom(format!("time: invalid duration {text:?}")))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&shared::flags::format_duration(self.0))
    }
}
