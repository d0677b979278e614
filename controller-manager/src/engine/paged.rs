//! Collections that are read page by page, so that neither the server nor a thread here is held by a long one.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::rest::{Rest, RestError};

/// Objects in one page; what client-go's pager asks for.
const PAGE: usize = 500;

/// Page of a collection.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub struct Page<T> {
    /// Objects of the page.
    #[serde(default = "Vec::new", deserialize_with = "items")]
    pub items: Vec<T>,
    #[serde(default)]
    metadata: More,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct More {
    #[serde(rename = "continue")]
    next: Option<String>,
    remaining_item_count: Option<u64>,
}

/// `null` is what Go's servers write for a list without items.
fn items<'de, T: DeserializeOwned, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(from)?.unwrap_or_default())
}

impl<T> Page<T> {
    /// Number of objects on the pages that follow, where the server says it.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.metadata.remaining_item_count
    }
}

/// The way through a collection.
pub struct Pages<'a> {
    rest: &'a Rest,
    /// Path of the collection, which may have a query.
    path: &'a str,
    accept: &'static str,
    /// End of the next query; nothing after the last page.
    next: Option<String>,
}

impl<'a> Pages<'a> {
    /// From the first page.
    #[must_use]
    pub fn of(rest: &'a Rest, path: &'a str, accept: &'static str) -> Self {
        Self { rest, path, accept, next: Some(String::new()) }
    }

    /// The next page; nothing after the last.
    ///
    /// # Errors
    /// The server's refusal, also of a page of a version that it has forgotten.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<Page<T>>, RestError> {
        let Some(next) = self.next.take() else { return Ok(None) };
        let mark = if self.path.contains('?') { '&' } else { '?' };
        let page: Page<T> = self.rest.get_as(&format!("{}{mark}limit={PAGE}{next}", self.path), self.accept).await?;
        let more = page.metadata.next.as_deref().filter(|token| !token.is_empty());
        self.next = more.map(|token| format!("&continue={token}"));
        // Reading a page takes a while: others have a turn in between.
        tokio::task::yield_now().await;
        Ok(Some(page))
    }

    /// All objects of all pages.
    ///
    /// # Errors
    /// As of [`Pages::next`].
    pub async fn all<T: DeserializeOwned>(mut self) -> Result<Vec<T>, RestError> {
        let mut all = Vec::new();
        while let Some(page) = self.next().await? {
            all.extend(page.items);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn pages_say_what_follows() {
        for (text, items, next, remaining) in [
            (json!({"items": [1, 2], "metadata": {"continue": "t", "remainingItemCount": 7}}), 2, Some("t"), Some(7)),
            (json!({"items": null, "metadata": {"continue": ""}}), 0, Some(""), None),
            (json!({"kind": "List"}), 0, None, None),
        ] {
            let page: Page<Value> = serde_json::from_value(text.clone()).expect("a page");
            assert_eq!(
                (page.items.len(), page.metadata.next.as_deref(), page.remaining()),
                (items, next, remaining),
                "{text}"
            );
        }
    }
}
