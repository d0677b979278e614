//! The claims that every token of an issuer has a meaning for: of which types they must be, whoever asks for them.

use proto::merge::json_type;
use serde_json::Value;

use super::error::RegisteredError;

/// Claims that are text where they are there.
const TEXTS: [&str; 4] = ["iss", "sub", "nonce", "at_hash"];
/// Claims that are moments, in seconds.
const MOMENTS: [&str; 3] = ["exp", "iat", "nbf"];

/// A moment among the claims; a number may stand in quotes.
pub(super) fn seconds(claims: &Value, name: &str) -> Option<f64> {
    match claims.get(name)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => literal(text),
        _ => None,
    }
}

/// A number as JSON writes it. `inf` and `nan` are none: a token would last for ever.
fn literal(text: &str) -> Option<f64> {
    let number: serde_json::Number = serde_json::from_str(text).ok()?;
    number.as_f64().filter(|_| text.trim() == text)
}

/// Refuses tokens whose registered claims are not of their types, in the words of upstream's library.
pub(super) fn check(claims: &Value) -> Result<(), RegisteredError> {
    let there = |name: &str| claims.get(name).filter(|value| !value.is_null());
    for name in TEXTS {
        match there(name) {
            Some(other) if !other.is_string() => return unlike(other, &format!("idToken.{name}"), "string"),
            _ => {}
        }
    }
    match there("aud") {
        None | Some(Value::String(_)) => {}
        Some(Value::Array(all)) => {
            if let Some(other) = all.iter().find(|one| !one.is_string()) {
                return unlike(other, "idToken.aud", "string");
            }
        }
        Some(other) => return unlike(other, "idToken.aud", "[]string"),
    }
    for name in MOMENTS {
        match there(name) {
            Some(Value::String(text)) if seconds(claims, name).is_none() => {
                let shown = Value::from(format!("\"{text}\""));
                return Err(RegisteredError::Number(shown.to_string()));
            }
            Some(other) if seconds(claims, name).is_none() => {
                return unlike(other, &format!("idToken.{name}"), "json.Number");
            }
            _ => {}
        }
    }
    distributed(claims)
}

/// Refuses a claim of another type than that of the field that upstream reads it into.
fn unlike(value: &Value, field: &str, wanted: &'static str) -> Result<(), RegisteredError> {
    Err(RegisteredError::Type { found: json_type(value), field: field.to_owned(), wanted })
}

/// Checks the claims that name sources of distributed claims.
fn distributed(claims: &Value) -> Result<(), RegisteredError> {
    let there = |name: &str| claims.get(name).filter(|value| !value.is_null());
    let empty = serde_json::Map::new();
    let names = match there("_claim_names") {
        None => &empty,
        Some(Value::Object(names)) => names,
        Some(other) => return unlike(other, "idToken._claim_names", "map[string]string"),
    };
    if let Some(other) = names.values().find(|name| !name.is_string()) {
        return unlike(other, "idToken._claim_names", "string");
    }
    let sources = match there("_claim_sources") {
        None => &empty,
        Some(Value::Object(sources)) => sources,
        Some(other) => return unlike(other, "idToken._claim_sources", "map[string]oidc.claimSource"),
    };
    for source in sources.values() {
        let Value::Object(fields) = source else {
            return unlike(source, "idToken._claim_sources", "oidc.claimSource");
        };
        for key in ["endpoint", "access_token"] {
            match fields.get(key).filter(|value| !value.is_null()) {
                Some(other) if !other.is_string() => {
                    return unlike(other, &format!("claimSource._claim_sources.{key}"), "string");
                }
                _ => {}
            }
        }
    }
    let nowhere = names.values().filter_map(Value::as_str).any(|name| !sources.contains_key(name));
    if nowhere { Err(RegisteredError::NoSource) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_checked() {
        let field = |what: &str, field: &str, of: &str| {
            Err(format!(
                "failed to unmarshal claims: json: cannot unmarshal {what} into Go struct field {field} of type {of}"
            ))
        };
        for (claims, want) in [
            (json!({"iss": "i", "sub": null, "aud": ["a"], "exp": "5", "nbf": 1.5}), Ok(())),
            (json!({"sub": 7}), field("number", "idToken.sub", "string")),
            (json!({"nonce": true}), field("bool", "idToken.nonce", "string")),
            (json!({"aud": 7}), field("number", "idToken.aud", "[]string")),
            (json!({"aud": ["a", 7]}), field("number", "idToken.aud", "string")),
            (
                json!({"exp": "x"}),
                Err(r#"failed to unmarshal claims: json: invalid number literal, trying to unmarshal "\"x\"" into Number"#.to_owned()),
            ),
            (json!({"_claim_names": 7}), field("number", "idToken._claim_names", "map[string]string")),
            (json!({"_claim_names": {"g": "s"}}), Err("source does not exist".to_owned())),
            (
                json!({"_claim_sources": {"s": {"endpoint": 7}}}),
                field("number", "claimSource._claim_sources.endpoint", "string"),
            ),
            (json!({"_claim_names": {"g": "s"}, "_claim_sources": {"s": {"endpoint": "https://x"}}}), Ok(())),
        ] {
            assert_eq!(check(&claims).map_err(|e| e.to_string()), want, "{claims}");
        }
        assert_eq!(seconds(&json!({"exp": "5"}), "exp"), Some(5.0));
        for none in ["inf", "NaN", "infinity", "+5", ".5", "5.", " 5", "", "1e999"] {
            let claims = json!({"exp": none});
            assert_eq!(seconds(&claims, "exp"), None, "{none}");
            assert!(check(&claims).is_err_and(|why| matches!(why, RegisteredError::Number(_))), "{none}");
        }
    }
}
