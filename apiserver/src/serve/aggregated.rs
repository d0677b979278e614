//! The aggregated form of discovery, as text. It is read as a whole after each change of a definition, so the text of a
//! group is kept for as long as its rows are the same.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proto::discovery::{self, Group};
use proto::resources::Row;
use proto::{Value, json, schema};

use crate::aggregate::Directory;

/// The text of groups that this server answers alone, by name.
#[derive(Default)]
pub struct Aggregated(Mutex<HashMap<String, Kept>>);

struct Kept {
    /// In the order of the text.
    rows: Vec<Row>,
    text: Arc<[u8]>,
}

fn text(group: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(schema) = schema::message("k8s.io.api.apidiscovery.v2.APIGroupDiscovery") {
        json::encode(schema, group, &mut out);
    }
    out
}

impl Aggregated {
    /// The `APIGroupDiscoveryList` of `/api` (`core` true) or `/apis`.
    pub fn document(&self, rows: &[Row], directory: &Directory, core: bool) -> Vec<u8> {
        let own = discovery::groups(rows.iter().filter(|row| row.group.is_empty() == core).map(|row| &**row));
        let (alone, shared): (Vec<_>, Vec<_>) = own.into_iter().partition(|group| core || directory.alone(group.name));
        let mut list = serde_json::json!({"items": shared.iter().map(discovery::aggregated_group).collect::<Value>()});
        if !core {
            directory.merge_aggregated(&mut list);
        }
        let mut items = Vec::with_capacity(alone.len());
        for item in list["items"].as_array().into_iter().flatten() {
            let versions = item["versions"].as_array().into_iter().flatten().filter_map(|v| v["version"].as_str());
            let place = directory.place(item["metadata"]["name"].as_str().unwrap_or(""), versions);
            items.push((place, text(item).into()));
        }
        for mut group in alone {
            directory.sort_versions(group.name, &mut group.versions, |version| version.name);
            let place = directory.place(group.name, group.versions.iter().map(|version| version.name));
            items.push((place, self.text(&group, rows)));
        }
        items.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        self.forget(items.len());
        let items: Vec<Arc<[u8]>> = items.into_iter().map(|(_, text)| text).collect();
        let head = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":["#;
        [head.as_bytes(), &items.join(&b","[..]), b"]}\n"].concat()
    }

    fn text(&self, group: &Group<'_>, rows: &[Row]) -> Arc<[u8]> {
        let resources = || group.versions.iter().flat_map(|version| &version.resources).copied();
        let mut kept = self.0.lock();
        if let Some(known) = kept.get(group.name)
            && known.rows.len() == resources().count()
            && known.rows.iter().zip(resources()).all(|(row, resource)| std::ptr::eq(&**row, resource))
        {
            return known.text.clone();
        }
        let text: Arc<[u8]> = text(&discovery::aggregated_group(group)).into();
        let rows = resources().filter_map(|resource| rows.iter().find(|row| std::ptr::eq(&***row, resource)).cloned());
        kept.insert(group.name.to_owned(), Kept { rows: rows.collect(), text: text.clone() });
        text
    }

    /// Lets groups go that are there no more, once they outnumber the others.
    fn forget(&self, present: usize) {
        let mut kept = self.0.lock();
        if kept.len() > 2 * (present + 1) {
            kept.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Rows;

    #[test]
    fn text_says_what_the_tree_says_and_follows_the_rows() {
        let (directory, aggregated) = (Directory::default(), Aggregated::default());
        let mut rows = Rows::default().all();
        for _ in 0..2 {
            for core in [true, false] {
                let found = aggregated.document(&rows, &directory, core);
                let mut want = discovery::aggregated(&discovery::groups(rows.iter().map(|r| &**r)), core, "v2");
                if !core {
                    directory.merge_aggregated(&mut want);
                }
                let schema = schema::kind("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList");
                let want = crate::negotiate::envelope(crate::negotiate::Format::Json, false, schema, &want);
                assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&want));
            }
            rows.retain(|row| &*row.plural != "deployments");
        }
    }
}
