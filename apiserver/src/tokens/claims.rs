//! Claims of service-account tokens: upstream's layout, and that of legacy tokens in secrets. Answers for upstream's
//! `pkg/serviceaccount/claims.go` (`Claims`).

use serde::{Deserialize, Serialize};

/// An object a token is bound to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bound {
    /// Name.
    pub name: String,
    /// Uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The `kubernetes.io` claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    /// Namespace of the account.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Node the token, or its pod, is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Bound>,
    /// Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Bound>,
    /// Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Bound>,
    /// The account.
    pub serviceaccount: Bound,
    /// From when on the use of the token is worth a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// All claims of a bound token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Claims {
    /// Audiences.
    #[serde(deserialize_with = "one_or_many")]
    pub aud: Vec<String>,
    /// Expires.
    pub exp: Option<i64>,
    /// Issued.
    pub iat: Option<i64>,
    /// Issuer.
    pub iss: String,
    /// Id.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub jti: String,
    /// Private claims `kubernetes.io`.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Kubernetes,
    /// Not before.
    pub nbf: Option<i64>,
    /// `system:serviceaccount:ns:name`
    pub sub: String,
}

/// The claims of a token kept in a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LegacyClaims {
    /// Namespace.
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    pub namespace: String,
    /// Secret that holds the token.
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    pub secret: String,
    /// Account.
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    pub account: String,
    /// UID of the object.
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    pub uid: String,
    /// Subject.
    pub sub: String,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Either::deserialize(from)? {
        Either::One(text) => vec![text],
        Either::Many(list) => list,
    })
}
