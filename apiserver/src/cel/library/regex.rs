//! `find`, `findAll`.

use ::cel::Value;

use super::{Answer, Entry, TEXT, entry, string, text};

pub(super) const TABLE: &[Entry] = &[
    entry!("find", true, [TEXT, TEXT], find),
    entry!("findAll", true, [TEXT, TEXT], find_all),
    entry!("findAll", true, [TEXT, TEXT, super::Kind::Int], find_all),
];

fn pattern(text: &str) -> Result<regex::Regex, String> {
    crate::crd::pattern(text).map_err(|e| format!("illegal regex: {e}"))
}

fn find(args: &[Value]) -> Answer {
    let found = pattern(text(args, 1)?)?.find(text(args, 0)?).map_or("", |m| m.as_str());
    Ok(string(found))
}

fn find_all(args: &[Value]) -> Answer {
    let limit = match args.get(2) {
        Some(Value::Int(n)) => usize::try_from(*n).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let pattern = pattern(text(args, 1)?)?;
    Ok(crate::cel::list(pattern.find_iter(text(args, 0)?).take(limit).map(|m| string(m.as_str()))))
}
