//! JSONPath as definitions use it: `.spec.replicas`, `.status.conditions[?(@.type=="Ready")].status`, `.a['b.c']`,
//! `.list[0]`, `.list[*].x`, `..name`. Read once, run on trees.
//!
//! Answers for `client-go/util/jsonpath`; templates with several expressions are not paths of definitions.

use proto::Value;

/// Longest path.
const MAX_STEPS: usize = 64;
/// Paths in filters in paths.
const MAX_FILTERS: usize = 8;
/// Most values one path yields.
const MAX_VALUES: usize = 10_000;

/// Fault of a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonPathError {
    /// Filters stand in filters without end.
    #[error("filters are nested too deeply")]
    TooDeep,
    /// Too many steps.
    #[error("path is too long")]
    TooLong,
    /// A bracket is not closed.
    #[error("unterminated array")]
    Open,
    /// A bracket holds no index.
    #[error("invalid array index")]
    NoIndex,
    /// This is no index.
    #[error("invalid array index {0}")]
    Index(String),
    /// A filter compares this, which is neither a path nor JSON.
    #[error("unrecognized filter operand {0}")]
    Operand(String),
}

/// A path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<PathStep>);

#[derive(Debug, Clone, PartialEq)]
enum PathStep {
    Field(String),
    /// From, to (exclusive), step; negative ones count from the end.
    Slice(Option<i64>, Option<i64>, i64),
    Index(i64),
    All,
    Descend,
    Union(Vec<PathStep>),
    Filter(Operand, &'static str, Operand),
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

impl JsonPath {
    /// Reads a path that begins with `.` (braces around it are allowed).
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        Self::within(text, 0)
    }

    /// One that stands in so many filters.
    fn within(text: &str, filters: usize) -> Result<Self, JsonPathError> {
        if filters > MAX_FILTERS {
            return Err(JsonPathError::TooDeep);
        }
        let text = text.trim();
        let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let mut rest = inner.trim();
        rest = rest.strip_prefix('$').or_else(|| rest.strip_prefix('@')).unwrap_or(rest);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if steps.len() >= MAX_STEPS {
                return Err(JsonPathError::TooLong);
            }
            let (step, tail) = step(rest, filters)?;
            steps.push(step);
            rest = tail;
        }
        Ok(Self(steps))
    }

    /// The names of a path of plain fields; `None` when there is anything else in it.
    pub fn fields(&self) -> Option<Vec<&str>> {
        self.0.iter().map(|s| if let PathStep::Field(name) = s { Some(name.as_str()) } else { None }).collect()
    }

    /// All values a path leads to.
    pub fn find<'v>(&self, root: &'v Value) -> Vec<&'v Value> {
        let mut found = vec![root];
        for step in &self.0 {
            found = found.into_iter().flat_map(|v| walk(step, v)).take(MAX_VALUES).collect();
        }
        found
    }
}

fn step(text: &str, filters: usize) -> Result<(PathStep, &str), JsonPathError> {
    if let Some(rest) = text.strip_prefix("..") {
        return Ok((PathStep::Descend, if rest.starts_with(['[', '.']) { rest } else { &text[1..] }));
    }
    if let Some(rest) = text.strip_prefix('.') {
        if rest.starts_with('[') {
            return bracket(rest, filters);
        }
        return Ok(name(rest));
    }
    if text.starts_with('[') {
        return bracket(text, filters);
    }
    Ok(name(text))
}

fn name(text: &str) -> (PathStep, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => out.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (named(out), &text[i..]),
            c => out.push(c),
        }
    }
    (named(out), "")
}

fn named(name: String) -> PathStep {
    if name == "*" { PathStep::All } else { PathStep::Field(name) }
}

/// The end of a bracket that opens at the start, quotes respected.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[' | '(') => depth += 1,
            (None, ']' | ')') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(i);
                }
            }
            _ => {}
        }
    }
    None
}

fn bracket(text: &str, filters: usize) -> Result<(PathStep, &str), JsonPathError> {
    let end = closing(text).ok_or(JsonPathError::Open)?;
    let (inner, rest) = (text[1..end].trim(), &text[end + 1..]);
    if let Some(filter) = inner.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
        return Ok((comparison(filter, filters + 1)?, rest));
    }
    let parts: Vec<&str> = split(inner, ',');
    let mut steps = parts.iter().map(|p| element(p.trim())).collect::<Result<Vec<_>, _>>()?;
    match steps.len() {
        1 => Ok((steps.remove(0), rest)),
        _ => Ok((PathStep::Union(steps), rest)),
    }
}

fn split(text: &str, at: char) -> Vec<&str> {
    let (mut parts, mut start, mut quote) = (Vec::new(), 0, None);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if c == at => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn element(text: &str) -> Result<PathStep, JsonPathError> {
    if text == "*" {
        return Ok(PathStep::All);
    }
    for quote in ['\'', '"'] {
        if let Some(name) = text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote)) {
            return Ok(PathStep::Field(name.replace("\\.", ".")));
        }
    }
    let number = |t: &str| match t.trim() {
        "" => Ok(None),
        t => t.parse::<i64>().map(Some).map_err(|_| JsonPathError::Index(t.to_owned())),
    };
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [one] => number(one)?.map(PathStep::Index).ok_or(JsonPathError::NoIndex),
        [from, to] => Ok(PathStep::Slice(number(from)?, number(to)?, 1)),
        [from, to, by] => Ok(PathStep::Slice(number(from)?, number(to)?, number(by)?.filter(|n| *n > 0).unwrap_or(1))),
        _ => Err(JsonPathError::Index(text.to_owned())),
    }
}

fn comparison(text: &str, filters: usize) -> Result<PathStep, JsonPathError> {
    for operator in ["==", "!=", "<=", ">=", "<", ">"] {
        if let Some((left, right)) = text.split_once(operator) {
            return Ok(PathStep::Filter(operand(left, filters)?, operator, operand(right, filters)?));
        }
    }
    Ok(PathStep::Filter(operand(text, filters)?, "exists", Operand::Literal(Value::Null)))
}

fn operand(text: &str, filters: usize) -> Result<Operand, JsonPathError> {
    let text = text.trim();
    if text.starts_with(['@', '$', '.']) {
        return JsonPath::within(text, filters).map(Operand::Path);
    }
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote)) {
            return Ok(Operand::Literal(Value::from(inner)));
        }
    }
    serde_json::from_str(text).map(Operand::Literal).map_err(|_| JsonPathError::Operand(text.to_owned()))
}

fn walk<'v>(step: &PathStep, value: &'v Value) -> Vec<&'v Value> {
    match (step, value) {
        (PathStep::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
        (PathStep::All, Value::Object(map)) => map.values().collect(),
        (PathStep::All, Value::Array(list)) => list.iter().collect(),
        (PathStep::Index(i), Value::Array(list)) => {
            place(*i, list.len()).and_then(|i| list.get(i)).into_iter().collect()
        }
        (PathStep::Slice(from, to, by), Value::Array(list)) => {
            let end = |n: Option<i64>, default: usize| n.map_or(Some(default), |n| place(n, list.len()));
            let (Some(from), Some(to)) = (end(*from, 0), end(*to, list.len())) else { return Vec::new() };
            let by = usize::try_from(*by).unwrap_or(1);
            list.iter().take(to).skip(from).step_by(by).collect()
        }
        (PathStep::Union(steps), value) => steps.iter().flat_map(|s| walk(s, value)).collect(),
        (PathStep::Filter(left, operator, right), Value::Array(list)) => {
            list.iter().filter(|v| compare(left, operator, right, v)).collect()
        }
        (PathStep::Descend, value) => {
            let mut all = Vec::new();
            descend(value, &mut all);
            all
        }
        _ => Vec::new(),
    }
}

fn place(i: i64, length: usize) -> Option<usize> {
    if i >= 0 { usize::try_from(i).ok() } else { length.checked_sub(usize::try_from(i.unsigned_abs()).ok()?) }
}

fn descend<'v>(value: &'v Value, all: &mut Vec<&'v Value>) {
    if all.len() >= MAX_VALUES {
        return;
    }
    all.push(value);
    match value {
        Value::Object(map) => map.values().for_each(|v| descend(v, all)),
        Value::Array(list) => list.iter().for_each(|v| descend(v, all)),
        _ => {}
    }
}

fn compare(left: &Operand, operator: &str, right: &Operand, at: &Value) -> bool {
    let value = |o: &Operand| match o {
        Operand::Literal(v) => Some(v.clone()),
        Operand::Path(p) => p.find(at).first().map(|v| (*v).clone()),
    };
    let Some(left) = value(left) else { return false };
    if operator == "exists" {
        return true;
    }
    let Some(right) = value(right) else { return false };
    let order = match (&left, &right) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => a.as_f64().zip(b.as_f64()).and_then(|(a, b)| a.partial_cmp(&b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    };
    let Some(order) = order else { return operator == "!=" && left != right };
    match operator {
        "==" => order.is_eq(),
        "!=" => order.is_ne(),
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths() {
        let object = json!({"spec": {"replicas": 3, "a.b": 1, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Bad", "status": "False"}]}});
        for (path, want) in [
            (".spec.replicas", json!([3])),
            ("{.spec.replicas}", json!([3])),
            (".spec['a.b']", json!([1])),
            (r".spec.a\.b", json!([1])),
            (".spec.list[0].n", json!(["x"])),
            (".spec.list[-1].n", json!(["y"])),
            (".spec.list[*].v", json!([1, 2])),
            (".spec.list[0:1].v", json!([1])),
            (".spec.list[0,1].v", json!([1, 2])),
            (".spec.list[?(@.v>1)].n", json!(["y"])),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!(["True"])),
            (".status.conditions[?(@.type=='Bad')].status", json!(["False"])),
            ("..n", json!(["x", "y"])),
            (".nope.nope", json!([])),
        ] {
            let found = JsonPath::parse(path).expect(path);
            let found: Vec<Value> = found.find(&object).into_iter().cloned().collect();
            assert_eq!(Value::Array(found), want, "{path}");
        }
        for bad in [".spec.list[", ".spec[?(@.a==)]", ".spec[x]"] {
            assert!(JsonPath::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(JsonPath::parse(".spec.a").expect("path").fields(), Some(vec!["spec", "a"]));
    }

    #[test]
    fn filters_in_filters_have_an_end() {
        let nested = |depth: usize| format!(".a{}{}", "[?(@.b".repeat(depth), ")]".repeat(depth));
        assert!(JsonPath::parse(&nested(MAX_FILTERS)).is_ok());
        assert_eq!(JsonPath::parse(&nested(MAX_FILTERS + 1)), Err(JsonPathError::TooDeep));
        assert_eq!(JsonPath::parse(&nested(20_000)), Err(JsonPathError::TooDeep));
    }
}
