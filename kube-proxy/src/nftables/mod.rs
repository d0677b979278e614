//! The nftables back end: one table, verdict maps for look-ups that do not grow with the
//! number of services, and transactions of what changed.

mod render;
#[cfg(test)]
mod tests;
mod transaction;

pub use render::{Options, Table, render};
pub use transaction::{removal, transaction};

use crate::backend::{Backend, SyncError, feed};
use crate::plan::Desired;
use async_trait::async_trait;

/// Keeps the kernel's table as wanted.
pub struct Nftables {
    options: Options,
    applied: Option<Table>,
}

impl Nftables {
    /// A back end that has not applied anything yet.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options, applied: None }
    }
}

#[async_trait]
impl Backend for Nftables {
    fn name(&self) -> &'static str {
        "nftables"
    }

    fn render(&self, desired: &Desired) -> String {
        transaction(None, &render(desired, &self.options), self.options.family)
    }

    async fn sync(&mut self, desired: &Desired) -> Result<(), SyncError> {
        let table = render(desired, &self.options);
        let text = transaction(self.applied.as_ref(), &table, self.options.family);
        if !text.is_empty()
            && let Err(error) = feed("nft", &["-f", "-"], &text).await
        {
            // What the kernel holds now is unknown: the next transaction makes the table anew.
            self.applied = None;
            return Err(error);
        }
        self.applied = Some(table);
        Ok(())
    }

    fn forget(&mut self) {
        self.applied = None;
    }

    async fn is_intact(&self) -> bool {
        let family = render::header(self.options.family);
        feed("nft", &["list", "chain", family, transaction::TABLE, "services"], "").await.is_ok()
    }

    async fn clean_up(&mut self) -> Result<(), SyncError> {
        feed("nft", &["-f", "-"], &removal(self.options.family)).await
    }
}
