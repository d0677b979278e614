//! Query parameters and the options made from them, checked as upstream checks them. Answers for upstream's
//! `ValidateListOptions`, `DecodeParameters`.

use proto::Value;
use shared::flags::parse_decimal;
use shared::status::{Status, field};

/// Decoded query parameters in order.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses `a=b&c=d`, without the parameters that are badly escaped or not separated as they should be.
    pub fn parse(raw: &str) -> Self {
        Self(
            raw.split('&')
                .filter(|p| !p.is_empty() && !p.contains(';') && is_escaped(p))
                .map(|p| p.split_once('=').unwrap_or((p, "")))
                .map(|(k, v)| (unescaped(k, true), unescaped(v, true)))
                .collect(),
        )
    }

    /// The first value of a parameter.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// All values of a parameter.
    pub fn all(&self, key: &str) -> Vec<String> {
        self.0.iter().filter(|(k, _)| k == key).map(|(_, v)| v.clone()).collect()
    }

    /// A boolean as upstream reads one: anything but `false` and `0` is true.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).is_some_and(|v| !v.eq_ignore_ascii_case("false") && v != "0")
    }

    /// A boolean that may be absent.
    pub fn maybe_flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|_| self.flag(key))
    }

    /// An integer, `None` when absent.
    pub fn int(&self, key: &str) -> Result<Option<i64>, Status> {
        let Some(text) = self.get(key) else { return Ok(None) };
        parse_decimal(text).map(Some).map_err(|why| Status::bad_request(&why.to_string()))
    }
}

/// Reports whether every percent sign of a text is followed by two hexadecimal digits.
pub fn is_escaped(text: &str) -> bool {
    let digits = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|b| b.is_ascii_hexdigit());
    text.split('%').skip(1).all(digits)
}

/// A text without its percent signs; in a query a plus is a space.
pub fn unescaped(text: &str, in_query: bool) -> String {
    if !text.contains(['%', '+']) {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b'+' if in_query => out.push(b' '),
            b'%' => match (hex(bytes.get(i + 1)), hex(bytes.get(i + 2))) {
                (Some(h), Some(l)) => {
                    out.push(h << 4 | l);
                    i += 2;
                }
                _ => out.push(b'%'),
            },
            b => out.push(b),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex(b: Option<&u8>) -> Option<u8> {
    b.and_then(|b| char::from(*b).to_digit(16)).and_then(|d| u8::try_from(d).ok())
}

/// Treatment of unknown and duplicate fields (`fieldValidation`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Silently dropped.
    Ignore,
    /// Dropped with a warning.
    #[default]
    Warn,
    /// Refused.
    Strict,
}

/// Options of a write.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// A dry run: everything but the write itself.
    pub dry_run: bool,
    /// Manager of the fields that are set.
    pub field_manager: String,
    /// See there.
    pub field_validation: FieldValidation,
    /// Apply only: take over conflicting fields.
    pub force: bool,
}

/// Kind of the options that error messages name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionsKind {
    /// `CreateOptions`
    Create,
    /// `UpdateOptions`
    Update,
    /// `PatchOptions`, with true for server-side apply.
    Patch(bool),
}

impl OptionsKind {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Patch(_) => "PatchOptions",
        }
    }
}

impl WriteOptions {
    /// Reads and checks the options of a create, update or patch.
    pub fn read(query: &Query, kind: OptionsKind, user_agent: &str) -> Result<Self, Status> {
        let mut errors = Vec::new();
        let manager = query.get("fieldManager").unwrap_or("");
        if let OptionsKind::Patch(apply) = kind {
            if apply {
                if manager.is_empty() {
                    errors
                        .push(field::Error::required(field::Path::new("fieldManager"), "is required for apply patch"));
                }
            } else if query.get("force").is_some() {
                errors.push(field::Error::forbidden(
                    field::Path::new("force"),
                    "may not be specified for non-apply patch",
                ));
            }
        }
        check_manager(manager, &mut errors);
        let dry = query.all("dryRun");
        check_dry_run(&dry, &mut errors);
        let validation = query.get("fieldValidation").unwrap_or("");
        let field_validation = match validation {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                errors.push(field::Error::not_supported(
                    field::Path::new("fieldValidation"),
                    Value::from(other),
                    &["", "Ignore", "Strict", "Warn"],
                ));
                FieldValidation::Warn
            }
        };
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", kind.name(), "", errors));
        }
        Ok(Self {
            dry_run: dry.iter().any(|d| d == "All"),
            field_manager: if manager.is_empty() { manager_of(user_agent) } else { manager.to_owned() },
            field_validation,
            force: query.flag("force"),
        })
    }
}

fn check_manager(manager: &str, errors: &mut Vec<field::Error>) {
    if manager.len() > 128 {
        errors.push(field::Error::too_long(field::Path::new("fieldManager"), 128));
    }
    if let Some((i, c)) = manager.char_indices().find(|(_, c)| c.is_control()) {
        let detail = format!("invalid character U+{:04X} (at position {i})", u32::from(c));
        errors.push(field::Error::invalid(field::Path::new("fieldManager"), manager, &detail));
    }
}

/// `dryRun` may hold nothing but `All`.
pub fn check_dry_run(dry: &[String], errors: &mut Vec<field::Error>) {
    if dry.iter().any(|d| d != "All") {
        errors.push(field::Error::not_supported(field::Path::new("dryRun"), Value::from(dry.to_vec()), &["All"]));
    }
}

/// The manager of a client that names none: the first word of its user agent.
pub fn manager_of(user_agent: &str) -> String {
    let name: String =
        user_agent.split('/').next().unwrap_or("").chars().filter(|c| !c.is_control()).take(128).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_and_escapes() {
        let q = Query::parse("a=zzz&b=false&c=0&d&e=x%2Fy+z&f=%zz&g=1;h=2&i=%");
        assert!(q.flag("a") && !q.flag("b") && !q.flag("c") && q.flag("d") && !q.flag("nope"));
        assert_eq!(q.get("e"), Some("x/y z"));
        assert_eq!(["f", "g", "h", "i"].map(|key| q.get(key)), [None; 4]);
        assert_eq!(q.int("nope").map_err(|e| e.message), Ok(None));
        assert_eq!(
            q.int("d").map_err(|e| e.message),
            Err(r#"strconv.ParseInt: parsing "": invalid syntax"#.to_owned())
        );
    }

    #[test]
    fn managers() {
        assert_eq!(manager_of("kubectl/v1.32 (linux)"), "kubectl");
        assert_eq!(manager_of(""), "unknown");
    }
}
