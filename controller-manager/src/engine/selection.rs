//! Controllers that run, by `--controllers`.

use std::collections::BTreeMap;

/// `--controllers` names something that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not in the list of known controllers")]
pub struct UnknownController(pub String);

/// Controllers that `--controllers` selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    star: bool,
    /// By canonical name: wanted or not. The first mention counts.
    named: BTreeMap<String, bool>,
}

impl Selection {
    /// Returns the names in `--controllers` that no controller has.
    #[must_use]
    pub fn unknown<'a>(values: &'a [String], known: &BTreeMap<&str, &str>) -> Vec<&'a str> {
        let names = values.iter().map(|v| v.trim()).filter(|v| *v != "*");
        names.map(|v| v.strip_prefix('-').unwrap_or(v)).filter(|name| !known.contains_key(name)).collect()
    }

    /// Read the flag's values. `known` maps every accepted name and alias to the canonical name.
    pub fn parse(values: &[String], known: &BTreeMap<&str, &str>) -> Result<Self, UnknownController> {
        let mut out = Self::default();
        for value in values {
            let value = value.trim();
            if value == "*" {
                out.star = true;
                continue;
            }
            let (name, wanted) = value.strip_prefix('-').map_or((value, true), |n| (n, false));
            let canonical = known.get(name).ok_or_else(|| UnknownController(name.to_owned()))?;
            out.named.entry((*canonical).to_owned()).or_insert(wanted);
        }
        Ok(out)
    }

    /// Reports whether this controller shall run.
    #[must_use]
    pub fn wants(&self, name: &str, on_by_default: bool) -> bool {
        self.named.get(name).copied().unwrap_or(self.star && on_by_default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection() {
        let known = BTreeMap::from([
            ("job-controller", "job-controller"),
            ("job", "job-controller"),
            ("ttl-controller", "ttl-controller"),
        ]);
        let parse = |s: &str| Selection::parse(&s.split(',').map(str::to_owned).collect::<Vec<_>>(), &known);
        for (flag, job, ttl) in [
            ("*", true, true),
            ("*,-job", false, true),
            ("job", true, false),
            ("-job-controller,*", false, true),
            ("-job", false, false),
            ("job,-job", true, false),
        ] {
            let s = parse(flag).expect(flag);
            assert_eq!((s.wants("job-controller", true), s.wants("ttl-controller", true)), (job, ttl), "{flag}");
        }
        assert!(!parse("*").expect("star").wants("job-controller", false), "off by default");
        assert!(parse("job").expect("named").wants("job-controller", false), "asked for by name");
        assert_eq!(parse("*,nope").unwrap_err().to_string(), "\"nope\" is not in the list of known controllers");
    }
}
