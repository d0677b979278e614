//! From the claims of a verified token to a user, by the mappings and rules of its issuer. Pure. Answers for upstream's
//! `plugin/pkg/authenticator/token/oidc` (`AuthenticateToken`).

use std::collections::BTreeMap;

use proto::merge::json_type;
use serde_json::{Value, json};
use shared::authn::UserInfo;

use super::config::{ClaimRule, Issuer, Mapping};
use super::error::{ClaimTypeError, ClaimsError, RuleError};
use crate::expressions::{Dialect, Scope};

const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// A text, or a list of texts.
fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(many) => many.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// Go's error for a claim of another type than it is read as.
fn unlike(claim: &Value, wanted: &'static str) -> ClaimTypeError {
    ClaimTypeError { found: json_type(claim), wanted }
}

/// A claim as text; null is none.
fn text(claim: &Value) -> Result<String, ClaimTypeError> {
    match claim {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        other => Err(unlike(other, "string")),
    }
}

/// Maximum depth at which claims get escaped names beside their own: each level may double the size below it.
const ESCAPED_LEVELS: usize = 4;

/// Claims as expressions see them: all numbers are fractions, and what no expression could name otherwise has its
/// escaped name, too, down to [`ESCAPED_LEVELS`].
fn seen(value: &Value, level: usize) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Array(items) => items.iter().map(|item| seen(item, level + 1)).collect(),
        Value::Object(fields) => {
            let mut shown = serde_json::Map::new();
            for (name, value) in fields {
                let value = seen(value, level + 1);
                let escaped = shared::cel::escape(name);
                if level < ESCAPED_LEVELS && escaped != *name {
                    shown.insert(escaped, value.clone());
                }
                shown.insert(name.clone(), value);
            }
            shown.into()
        }
        other => other.clone(),
    }
}

fn holds(scope: &mut Scope<'_>, expression: &str, message: &str) -> Result<(), RuleError> {
    if scope.evaluate_bool(expression)? {
        return Ok(());
    }
    Err(RuleError::Refused { expression: expression.to_owned(), message: message.to_owned() })
}

/// Maps claims to a user.
pub(super) fn identity(issuer: &Issuer, claims: &Value) -> Result<UserInfo, ClaimsError> {
    let shown = seen(claims, 0);
    let mut scope = Scope::new(Dialect::Claims, &[("claims", &shown)]);
    let name = username(issuer, claims, &mut scope)?;
    let groups = groups(issuer, claims, &mut scope)?;
    let uid = uid(issuer, claims, &mut scope)?;
    let mut extra = BTreeMap::new();
    for (key, expression) in &issuer.extra {
        let value = scope.value(expression).map_err(ClaimsError::Extra)?;
        let mut values = texts(&value).ok_or_else(|| ClaimsError::ExtraNotTexts(expression.clone()))?;
        values.retain(|v| !v.is_empty());
        if !values.is_empty() {
            extra.insert(key.clone(), values);
        }
    }
    if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
        extra.insert(CREDENTIAL.to_owned(), vec![format!("JTI={id}")]);
    }
    for rule in &issuer.rules {
        if let ClaimRule::Claim { claim, value } = rule {
            required(claims, claim, value)?;
        }
    }
    for rule in &issuer.rules {
        if let ClaimRule::Expression { expression, message } = rule {
            holds(&mut scope, expression, message).map_err(ClaimsError::ClaimRule)?;
        }
    }
    let user = UserInfo { name, uid, groups, extra };
    if !issuer.user_rules.is_empty() {
        let shown = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        let mut scope = Scope::new(Dialect::User, &[("user", &shown)]);
        for (expression, message) in &issuer.user_rules {
            holds(&mut scope, expression, message).map_err(ClaimsError::UserRule)?;
        }
    }
    Ok(user)
}

fn required(claims: &Value, claim: &str, wanted: &str) -> Result<(), ClaimsError> {
    let name = || claim.to_owned();
    let value = claims.get(claim).ok_or_else(|| ClaimsError::NoRequired(name()))?;
    let value = text(value).map_err(|source| ClaimsError::RequiredType { claim: name(), source })?;
    if value == wanted {
        return Ok(());
    }
    Err(ClaimsError::RequiredValue { claim: name(), value, wanted: wanted.to_owned() })
}

fn username(issuer: &Issuer, claims: &Value, scope: &mut Scope<'_>) -> Result<String, ClaimsError> {
    let (claim, prefix) = match &issuer.username {
        Mapping::Expression(expression) => {
            return match scope.value(expression).map_err(ClaimsError::Username)? {
                Value::String(name) if !name.is_empty() => Ok(name),
                Value::String(_) => Err(ClaimsError::EmptyUsername),
                _ => Err(ClaimsError::UsernameNotText),
            };
        }
        Mapping::Claim { claim, prefix } => (claim, prefix),
        Mapping::None => return Err(ClaimsError::NoUsernameMapping),
    };
    let value = claims.get(claim).ok_or_else(|| ClaimsError::NoUsername(claim.clone()))?;
    let name = text(value).map_err(|source| ClaimsError::UsernameType { claim: claim.clone(), source })?;
    // An address somebody typed in says nothing; one that was checked does.
    if claim == "email"
        && let Some(verified) = claims.get("email_verified")
        && verified != &Value::Bool(true)
    {
        return Err(match verified {
            Value::Bool(_) | Value::Null => ClaimsError::EmailNotVerified,
            other => ClaimsError::EmailVerifiedType(unlike(other, "bool")),
        });
    }
    Ok(format!("{prefix}{name}"))
}

fn groups(issuer: &Issuer, claims: &Value, scope: &mut Scope<'_>) -> Result<Vec<String>, ClaimsError> {
    let (claim, prefix) = match &issuer.groups {
        Mapping::None => return Ok(Vec::new()),
        Mapping::Expression(expression) => {
            let value = scope.value(expression).map_err(ClaimsError::Groups)?;
            let mut found = texts(&value).ok_or(ClaimsError::GroupsNotTexts)?;
            found.retain(|g| !g.is_empty());
            return Ok(found);
        }
        Mapping::Claim { claim, prefix } => (claim, prefix),
    };
    let Some(value) = claims.get(claim) else { return Ok(Vec::new()) };
    let found = match value {
        Value::Array(many) => many.iter().map(text).collect::<Result<Vec<_>, _>>().map_err(|_| unlike(value, "string")),
        Value::Null => Ok(Vec::new()),
        one => text(one).map(|one| vec![one]),
    };
    let found = found.map_err(|source| ClaimsError::GroupsType { claim: claim.clone(), source })?;
    Ok(found.into_iter().map(|g| format!("{prefix}{g}")).collect())
}

fn uid(issuer: &Issuer, claims: &Value, scope: &mut Scope<'_>) -> Result<String, ClaimsError> {
    let value = match &issuer.uid {
        Mapping::None => return Ok(String::new()),
        Mapping::Expression(expression) => scope.value(expression).map_err(ClaimsError::Uid)?,
        Mapping::Claim { claim, .. } => {
            let found = claims.get(claim).ok_or_else(|| ClaimsError::NoUid(claim.clone()))?;
            return text(found).map_err(|source| ClaimsError::UidType { claim: claim.clone(), source });
        }
    };
    match value {
        Value::String(uid) => Ok(uid),
        Value::Null => Ok(String::new()),
        _ => Err(ClaimsError::UidNotText),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_claim(claim: &str, prefix: &str) -> Mapping {
        Mapping::Claim { claim: claim.into(), prefix: prefix.into() }
    }

    #[test]
    fn claims_become_users() {
        let issuer =
            Issuer { username: by_claim("sub", "https://i#"), groups: by_claim("roles", "x:"), ..Issuer::default() };
        let user = identity(&issuer, &json!({"sub": "jane", "roles": "dev", "jti": "7"})).expect("a user");
        assert_eq!((user.name.as_str(), &user.groups[..]), ("https://i#jane", &["x:dev".to_owned()][..]));
        assert_eq!(user.extra[CREDENTIAL], ["JTI=7"]);
        assert!(identity(&issuer, &json!({"name": "jane"})).is_err());
        let email = Issuer { username: by_claim("email", ""), ..Issuer::default() };
        for (claims, want) in [
            (json!({"email": "a@b", "email_verified": true}), Ok("a@b")),
            (json!({"email": "a@b"}), Ok("a@b")),
            (json!({"email": "a@b", "email_verified": false}), Err("oidc: email not verified")),
            (
                json!({"email": "a@b", "email_verified": "true"}),
                Err("oidc: parse 'email_verified' claim: json: cannot unmarshal string into Go value of type bool"),
            ),
        ] {
            let got = identity(&email, &claims).map(|u| u.name).map_err(|e| e.to_string());
            assert_eq!(got.as_deref().map_err(String::as_str), want, "{claims}");
        }
    }

    /// Claims that are not what they are read as.
    #[test]
    fn claims_of_other_types() {
        let issuer = Issuer {
            username: by_claim("sub", ""),
            groups: by_claim("g", "p:"),
            uid: by_claim("id", ""),
            rules: vec![ClaimRule::Claim { claim: "hd".into(), value: "v".into() }],
            ..Issuer::default()
        };
        for (groups, id, hd, want) in [
            (json!(["a", null]), json!("u"), json!("v"), Ok(vec!["p:a", "p:"])),
            (
                json!(7),
                json!("u"),
                json!("v"),
                Err("oidc: parse groups claim \"g\": json: cannot unmarshal number into Go value of type string"),
            ),
            (
                json!([1]),
                json!("u"),
                json!("v"),
                Err("oidc: parse groups claim \"g\": json: cannot unmarshal array into Go value of type string"),
            ),
            (
                json!([]),
                json!(["u"]),
                json!("v"),
                Err("oidc: parse uid claim \"id\": json: cannot unmarshal array into Go value of type string"),
            ),
            (
                json!([]),
                json!(""),
                json!(true),
                Err("oidc: parse claim hd: json: cannot unmarshal bool into Go value of type string"),
            ),
        ] {
            let got = identity(&issuer, &json!({"sub": "j", "g": groups, "id": id, "hd": hd}));
            let got = got.map(|user| user.groups).map_err(|e| e.to_string());
            let want = want.map(|groups| groups.into_iter().map(str::to_owned).collect()).map_err(str::to_owned);
            assert_eq!(got, want, "{groups} {id} {hd}");
        }
    }

    /// Upstream reads claims without telling whole numbers from fractions, and names them as it names fields.
    #[test]
    fn claims_as_expressions_see_them() {
        let claims = json!({"sub": "j", "n": 5, "a.b": {"namespace": "n"}});
        for (expression, want) in [
            ("string(claims.n + 0.5)", Ok("5.5")),
            ("claims.a__dot__b.__namespace__ + claims['a.b']['namespace']", Ok("nn")),
            (
                "string(claims.n + 1)",
                Err(
                    "oidc: error evaluating username claim expression: expression 'string(claims.n + 1)' resulted in error: no such overload",
                ),
            ),
            ("''", Err("oidc: empty username via CEL expression is not allowed")),
        ] {
            let issuer = Issuer { username: Mapping::Expression(expression.into()), ..Issuer::default() };
            let got = identity(&issuer, &claims).map(|user| user.name).map_err(|e| e.to_string());
            assert_eq!(got.as_deref().map_err(String::as_str), want, "{expression}");
        }
    }

    /// Names that need escaping, one inside the other, do not make a token dear to read.
    #[test]
    fn nested_claims_are_escaped_to_a_limited_depth() {
        let deep = (0..100).fold(json!(1), |inner, _| json!({"a.b": inner}));
        let shown = seen(&deep, 0).to_string();
        assert!(shown.len() < 100 * deep.to_string().len(), "{} bytes", shown.len());
    }

    #[test]
    fn expressions_map_and_refuse() {
        let issuer = Issuer {
            username: Mapping::Expression("claims.name + '@' + claims.org".into()),
            groups: Mapping::Expression("claims.roles.split(',')".into()),
            uid: Mapping::Expression("claims.?id.orValue('')".into()),
            extra: vec![("example.com/tenant".into(), "claims.org".into())],
            rules: vec![ClaimRule::Expression {
                expression: "claims.hd == 'example.com'".into(),
                message: "the hosted domain".into(),
            }],
            user_rules: vec![("!user.username.startsWith('system:')".into(), "reserved".into())],
            ..Issuer::default()
        };
        let good = json!({"name": "jane", "org": "o", "roles": "a,b", "hd": "example.com"});
        let user = identity(&issuer, &good).expect("a user");
        assert_eq!((user.name.as_str(), user.uid.as_str(), user.groups.join(" ").as_str()), ("jane@o", "", "a b"));
        assert_eq!(user.extra["example.com/tenant"], ["o"]);
        let other = json!({"name": "jane", "org": "o", "roles": "a,b", "hd": "other"});
        assert_eq!(
            identity(&issuer, &other).expect_err("refused").to_string(),
            "oidc: error evaluating claim validation expression: validation expression 'claims.hd == 'example.com'' failed: the hosted domain"
        );
        let reserved = json!({"name": "system:jane", "org": "o", "roles": "a,b", "hd": "example.com"});
        assert_eq!(
            identity(&issuer, &reserved).expect_err("refused").to_string(),
            "oidc: error evaluating user info validation rule: validation expression '!user.username.startsWith('system:')' failed: reserved"
        );
        let required = Issuer {
            username: by_claim("sub", ""),
            rules: vec![ClaimRule::Claim { claim: "hd".into(), value: "a".into() }],
            ..Issuer::default()
        };
        assert_eq!(
            identity(&required, &json!({"sub": "x", "hd": "b"})).expect_err("refused").to_string(),
            "oidc: required claim hd value does not match. Got = b, want = a"
        );
        assert_eq!(
            identity(&required, &json!({"sub": "x"})).expect_err("refused").to_string(),
            "oidc: required claim hd not present in ID token"
        );
    }
}
