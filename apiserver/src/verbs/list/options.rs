//! Options of a list or a watch.

use proto::Value;
use proto::resources::Resource;
use shared::status::{Status, field};

use super::token::read_token;
use crate::machinery::query::Query;
use crate::verbs::get;
use crate::verbs::select::Selection;

/// Freshness that a list asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Now, agreed with etcd.
    Now,
    /// Any revision that is known.
    Any,
    /// This revision or a newer one.
    NotOlder(i64),
    /// Exactly this revision.
    Exact(i64),
}

/// Options of a list, checked.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) moment: Freshness,
    pub(super) limit: usize,
    /// Key below the resource's prefix to start at.
    pub(super) start: String,
    pub(super) continued: bool,
}

fn forbidden(detail: &str) -> field::Error {
    field::Error::forbidden(field::Path::new("resourceVersionMatch"), detail)
}

/// A watch that says neither where it begins nor how is taken for one that begins with the state.
pub fn begins_with_state(query: &Query) -> bool {
    let text = |k: &str| query.get(k).unwrap_or("");
    query.maybe_flag("sendInitialEvents").is_none()
        && text("resourceVersionMatch").is_empty()
        && matches!(text("resourceVersion"), "" | "0")
}

/// Request whose options are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListVerb {
    /// Of a LIST.
    List,
    /// Of a WATCH, and whether it may begin with the state when it says so: `WatchList`.
    Watch(bool),
}

/// Checks the options both LIST and WATCH have.
pub(super) fn check(query: &Query, asked: ListVerb) -> Result<(), Status> {
    let text = |k: &str| query.get(k).unwrap_or("");
    let (rv, matching, cont) = (text("resourceVersion"), text("resourceVersionMatch"), text("continue"));
    let mut errors = Vec::new();
    let send = query.maybe_flag("sendInitialEvents");
    if let ListVerb::Watch(lists) = asked {
        let begins = lists && begins_with_state(query);
        let (sends, matching) = (send.is_some() || begins, if begins { "NotOlderThan" } else { matching });
        if sends && matching != "NotOlderThan" {
            errors.push(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
        }
        if send.is_some() && !lists {
            let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            errors.push(field::Error::forbidden(field::Path::new("sendInitialEvents"), why));
        }
        if !matching.is_empty() {
            if !sends {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(forbidden(why));
            }
            if matching != "NotOlderThan" {
                let path = field::Path::new("resourceVersionMatch");
                errors.push(field::Error::not_supported(path, Value::from(matching), &["NotOlderThan"]));
            }
            if !cont.is_empty() {
                errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
            }
        }
    } else {
        if !matching.is_empty() {
            if rv.is_empty() {
                errors.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
            }
            if !cont.is_empty() {
                errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
            }
            if !matches!(matching, "Exact" | "NotOlderThan") {
                let path = field::Path::new("resourceVersionMatch");
                errors.push(field::Error::not_supported(path, Value::from(matching), &["Exact", "NotOlderThan", ""]));
            }
            if matching == "Exact" && rv == "0" {
                errors.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
            }
        }
        if send.is_some() {
            errors.push(field::Error::forbidden(
                field::Path::new("sendInitialEvents"),
                "sendInitialEvents is forbidden for list",
            ));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("meta.k8s.io", "ListOptions", "", errors)) }
}

/// Reads the selection of a LIST or a WATCH once its options are checked, in upstream's order: numbers, selectors,
/// combinations of options, selected fields.
pub fn selection(query: &Query, row: &Resource, asked: ListVerb) -> Result<Selection, Status> {
    query.int("timeoutSeconds")?;
    query.int("limit")?;
    Selection::read_checking(query, row, || check(query, asked))
}

/// Reads what a list asks for; `scope` is what its keys begin with, `cached` whether there is a cache to answer it.
pub(super) fn read(query: &Query, scope: &str, cached: bool) -> Result<Options, Status> {
    check(query, ListVerb::List)?;
    let limit = usize::try_from(query.int("limit")?.unwrap_or(0)).unwrap_or(0);
    query.int("timeoutSeconds")?;
    let text = |k: &str| query.get(k).unwrap_or("");
    if let Some(token) = query.get("continue").filter(|t| !t.is_empty()) {
        let (revision, start) = read_token(token, scope)?;
        if !matches!(text("resourceVersion"), "" | "0") {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let moment = if revision > 0 { Freshness::Exact(revision) } else { Freshness::Now };
        return Ok(Options { moment, limit, start, continued: true });
    }
    let rv = get::revision(text("resourceVersion"))
        .map_err(|e| Status::bad_request(&format!("invalid resource version: {e}")))?;
    let moment = match (rv, text("resourceVersionMatch")) {
        (None, _) => Freshness::Now,
        // etcd cuts every list.
        (Some(0), _) if !cached => Freshness::Now,
        // Whoever takes what is known takes all of it.
        (Some(0), _) => {
            return Ok(Options { moment: Freshness::Any, limit: 0, start: String::new(), continued: false });
        }
        (Some(n), "Exact") => Freshness::Exact(n),
        (Some(n), "") if limit > 0 => Freshness::Exact(n),
        (Some(n), _) => Freshness::NotOlder(n),
    };
    Ok(Options { moment, limit, start: String::new(), continued: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_rules() {
        for (query, ok) in [
            ("resourceVersionMatch=Exact", false),
            ("resourceVersionMatch=Foo&resourceVersion=1", false),
            ("resourceVersionMatch=Exact&resourceVersion=0", false),
            ("sendInitialEvents=true", false),
            ("resourceVersionMatch=NotOlderThan&resourceVersion=0&limit=-1", true),
            ("limit=abc", false),
            ("resourceVersion=abc", false),
        ] {
            assert_eq!(read(&Query::parse(query), "", true).is_ok(), ok, "{query}");
        }
        for (query, causes) in [
            ("", 0),
            ("continue=x", 1),
            ("resourceVersion=5&continue=x", 0),
            ("resourceVersionMatch=Exact", 2),
            ("sendInitialEvents=true&resourceVersionMatch=Exact", 2),
            ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=5", 0),
        ] {
            let found = check(&Query::parse(query), ListVerb::Watch(true))
                .err()
                .and_then(|s| s.details)
                .map_or(0, |d| d.causes.len());
            assert_eq!(found, causes, "{query}");
        }
        for (query, want) in [
            ("resourceVersion=7&limit=5", (Freshness::Exact(7), 5)),
            ("resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan", (Freshness::NotOlder(7), 5)),
            ("resourceVersion=0&limit=5", (Freshness::Any, 0)),
            ("limit=5", (Freshness::Now, 5)),
        ] {
            assert_eq!(read(&Query::parse(query), "", true).map(|o| (o.moment, o.limit)).ok(), Some(want), "{query}");
        }
        let refused = |query| check(&Query::parse(query), ListVerb::Watch(false)).err().map(|status| status.message);
        assert_eq!(refused(""), None);
        let why = r#"ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"#;
        let asks = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(refused(asks).as_deref(), Some(why));
        assert_eq!(
            read(&Query::parse("resourceVersion=7&limit=5"), "", true).map(|o| o.moment).ok(),
            Some(Freshness::Exact(7))
        );
    }
}
