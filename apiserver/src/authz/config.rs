//! Configuration of authorizers: from `--authorization-mode` and its companions, or from the file of
//! `--authorization-config`, which is reloaded on change. Answers for upstream's `ValidateAuthorizationConfiguration`,
//! pkg/kubeapiserver/authorizer.
//!
//! In come flags and bytes, out go checked descriptions ([`Configured`]) and, from them, the chain's members.

use std::collections::HashSet;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use shared::authz::Decision;
use shared::client::{Dialer, Remote};
use shared::config::{self, Unknown};
use shared::flags::{FlagSet, parse_nanos};
use shared::os;
use shared::status::field::{Error, Path, aggregate};

use super::abac::{self, Abac};
use super::node::NodeAuthorizer;
use super::rbac::{self, Rbac, Rule};
use super::webhook::{Options, Webhook};
use super::{Authorization, AuthorizerKind, Member, Mode};
use crate::api::Reader;
use crate::expressions::{self, Dialect, ResultType};
use crate::machinery::tree;

/// Longest a webhook may take.
const LONGEST: i64 = 30_000_000_000;
/// Timeout of a webhook that is configured by flags.
const FLAG_TIMEOUT: Duration = Duration::from_secs(30);
/// Most match conditions of one webhook.
const CONDITIONS: usize = 64;

/// Errors of the authorization configuration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The configuration, in upstream's words.
    #[error("{0}")]
    Invalid(String),
    /// The policy file.
    #[error("{0}")]
    Abac(#[from] abac::Error),
}

fn invalid(text: impl Into<String>) -> ConfigError {
    ConfigError::Invalid(text.into())
}

/// One authoriser as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct Configured {
    /// Mode.
    pub mode: Mode,
    /// Name of the authorizer.
    pub name: String,
    /// For webhooks: the kubeconfig file and the rest.
    pub webhook: Option<(String, Options)>,
}

/// From the command line, the configuration file included.
pub fn from_flags(flags: &FlagSet) -> Result<Vec<Configured>, ConfigError> {
    let file = flags.string("authorization-config");
    let legacy = [
        "authorization-mode",
        "authorization-webhook-config-file",
        "authorization-webhook-version",
        "authorization-webhook-cache-authorized-ttl",
        "authorization-webhook-cache-unauthorized-ttl",
    ];
    if file.is_empty() {
        return from_modes(flags);
    }
    if legacy.iter().any(|name| flags.is_set(name)) {
        return Err(invalid(
            "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined",
        ));
    }
    let bytes = os::read(&file)
        .map_err(|why| invalid(format!("failed to load AuthorizationConfiguration from file: {why}")))?;
    load(&bytes, &[])
}

fn from_modes(flags: &FlagSet) -> Result<Vec<Configured>, ConfigError> {
    let mut words = flags.list("authorization-mode");
    if words.is_empty() {
        words.push("AlwaysAllow".to_owned());
    }
    let policy = flags.string("authorization-policy-file");
    let kubeconfig = flags.string("authorization-webhook-config-file");
    let mut errors = Vec::new();
    let mut configured: Vec<Configured> = Vec::new();
    for word in &words {
        let Some(mode) = Mode::parse(word) else {
            errors.push(format!("authorization-mode {word:?} is not a valid mode"));
            continue;
        };
        if mode == Mode::Abac && policy.is_empty() {
            errors.push("authorization-mode ABAC's authorization policy file not passed".to_owned());
        }
        if mode == Mode::Webhook && kubeconfig.is_empty() {
            errors.push("authorization-mode Webhook's authorization config file not passed".to_owned());
        }
        let name = word.to_ascii_lowercase();
        let options = || Options {
            name: name.clone(),
            version: flags.string("authorization-webhook-version"),
            authorized_ttl: flags.duration("authorization-webhook-cache-authorized-ttl"),
            unauthorized_ttl: flags.duration("authorization-webhook-cache-unauthorized-ttl"),
            timeout: FLAG_TIMEOUT,
            on_error: Decision::NoOpinion,
            conditions: Vec::new(),
        };
        let webhook = (mode == Mode::Webhook).then(|| (kubeconfig.clone(), options()));
        configured.push(Configured { mode, name, webhook });
    }
    let has = |mode: Mode| configured.iter().any(|c| c.mode == mode);
    if !policy.is_empty() && !has(Mode::Abac) {
        errors.push("cannot specify --authorization-policy-file without mode ABAC".to_owned());
    }
    if !kubeconfig.is_empty() && !has(Mode::Webhook) {
        errors.push("cannot specify --authorization-webhook-config-file without mode Webhook".to_owned());
    }
    if words.iter().collect::<HashSet<_>>().len() != words.len() {
        errors.push(format!("authorization-mode {} has mode specified more than once", rbac::quoted_list(&words)));
    }
    if errors.is_empty() { Ok(configured) } else { Err(invalid(aggregate(&errors))) }
}

/// From the bytes of a file; the modes in `required` must be there.
pub fn load(bytes: &[u8], required: &[Mode]) -> Result<Vec<Configured>, ConfigError> {
    let tree = config::decode(bytes, "AuthorizationConfiguration", Unknown::Refuse)
        .map_err(|e| invalid(format!("failed to load AuthorizationConfiguration from file: {e}")))?;
    let mut errors = Vec::new();
    let configured = read(&tree, &mut errors);
    if !errors.is_empty() {
        return Err(invalid(aggregate(&errors)));
    }
    let mut errors: Vec<String> = Vec::new();
    for c in configured.iter().filter(|c| c.mode != Mode::Webhook) {
        let expected = c.mode.name().to_ascii_lowercase();
        if c.name != expected {
            errors.push(format!("expected name {expected} for authorizer {} instead of {}", c.mode.name(), c.name));
        }
    }
    let missing: Vec<&str> =
        required.iter().filter(|m| !configured.iter().any(|c| c.mode == **m)).map(|m| m.name()).collect();
    if !missing.is_empty() {
        errors.push(format!("missing required types: [{}]", missing.join(" ")));
    }
    if errors.is_empty() { Ok(configured) } else { Err(invalid(aggregate(&errors))) }
}

fn read(tree: &Value, errors: &mut Vec<Error>) -> Vec<Configured> {
    let root = Path::new("authorizers");
    let entries = tree::list(tree, "/authorizers");
    if entries.is_empty() {
        errors.push(Error::required(root.clone(), "at least one authorization mode must be defined"));
    }
    let (mut modes, mut names) = (HashSet::new(), HashSet::new());
    let mut configured = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let path = root.index(at);
        let (word, name) = (tree::text(entry, "/type"), tree::text(entry, "/name"));
        if word.is_empty() {
            errors.push(Error::required(path.child("type"), ""));
            continue;
        }
        let Some(mode) = Mode::parse(word) else {
            let mut known = Mode::ALL.map(Mode::name);
            known.sort_unstable();
            errors.push(Error::not_supported(path.child("type"), word, &known));
            continue;
        };
        if !modes.insert(word) && mode != Mode::Webhook {
            errors.push(Error::duplicate(path.child("type"), word));
            continue;
        }
        let complaints = proto::selector::format::dns1123_subdomain(name);
        if name.is_empty() {
            errors.push(Error::required(path.child("name"), ""));
        } else if !names.insert(name) {
            errors.push(Error::duplicate(path.child("name"), name));
        } else if !complaints.is_empty() {
            let text = format!("authorizer name is invalid: {}", complaints.join(", "));
            errors.push(Error::invalid(path.child("name"), name, &text));
        }
        let webhook = entry.get("webhook").filter(|w| !w.is_null());
        let webhook = match (mode, webhook) {
            (Mode::Webhook, None) => {
                errors.push(Error::required(path.child("webhook"), "required when type=Webhook"));
                continue;
            }
            (Mode::Webhook, Some(webhook)) => Some(read_webhook(name, webhook, &path, errors)),
            (_, Some(_)) => {
                let text = "may only be specified when type=Webhook";
                errors.push(Error::invalid(path.child("webhook"), "non-null", text));
                None
            }
            (_, None) => None,
        };
        configured.push(Configured { mode, name: name.to_owned(), webhook });
    }
    configured
}

/// Nanoseconds; the table has seen to it that it is a duration.
fn nanos(tree: &Value, field: &str, default: i64) -> i64 {
    match parse_nanos(tree::text(tree, field)).unwrap_or(0) {
        0 => default,
        nanos => nanos,
    }
}

fn read_webhook(name: &str, webhook: &Value, path: &Path, errors: &mut Vec<Error>) -> (String, Options) {
    let text = |field: &str| tree::text(webhook, field);
    let shown = |nanos: i64| shared::flags::format_nanos(nanos);
    let timeout = nanos(webhook, "/timeout", 0);
    if timeout == 0 {
        errors.push(Error::required(path.child("timeout"), ""));
    } else if !(0..=LONGEST).contains(&timeout) {
        errors.push(Error::invalid(path.child("timeout"), shown(timeout), "must be > 0s and <= 30s"));
    }
    let authorized = nanos(webhook, "/authorizedTTL", 300_000_000_000);
    let unauthorized = nanos(webhook, "/unauthorizedTTL", 30_000_000_000);
    for (field, ttl) in [("authorizedTTL", authorized), ("unauthorizedTTL", unauthorized)] {
        if ttl < 0 {
            errors.push(Error::invalid(path.child(field), shown(ttl), "must be > 0s"));
        }
    }
    match text("/subjectAccessReviewVersion") {
        "" => errors.push(Error::required(path.child("subjectAccessReviewVersion"), "")),
        "v1" | "v1beta1" => {}
        other => errors.push(Error::not_supported(path.child("subjectAccessReviewVersion"), other, &["v1", "v1beta1"])),
    }
    let conditions = tree::list(webhook, "/matchConditions");
    let condition_version = path.child("matchConditionSubjectAccessReviewVersion");
    match text("/matchConditionSubjectAccessReviewVersion") {
        "" if conditions.is_empty() => {}
        "" => errors.push(Error::required(condition_version, "required if match conditions are specified")),
        "v1" => {}
        other => errors.push(Error::not_supported(condition_version, other, &["v1"])),
    }
    let on_error = match text("/failurePolicy") {
        "Deny" => Decision::Deny,
        "NoOpinion" => Decision::NoOpinion,
        other => {
            errors.push(match other {
                "" => Error::required(path.child("failurePolicy"), ""),
                _ => Error::not_supported(path.child("failurePolicy"), other, &["NoOpinion", "Deny"]),
            });
            Decision::Deny
        }
    };
    check_connection(webhook, &path.child("connectionInfo"), errors);
    let options = Options {
        name: name.to_owned(),
        version: text("/subjectAccessReviewVersion").to_owned(),
        authorized_ttl: kept(webhook, "/cacheAuthorizedRequests", authorized),
        unauthorized_ttl: kept(webhook, "/cacheUnauthorizedRequests", unauthorized),
        timeout: positive(timeout),
        on_error,
        conditions: read_conditions(conditions, &path.child("matchConditions"), errors),
    };
    (text("/connectionInfo/kubeConfigFile").to_owned(), options)
}

fn positive(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

fn kept(webhook: &Value, switch: &str, ttl: i64) -> Duration {
    if tree::maybe_flag(webhook, switch).unwrap_or(true) { positive(ttl) } else { Duration::ZERO }
}

fn check_connection(webhook: &Value, path: &Path, errors: &mut Vec<Error>) {
    let file = tree::text(webhook, "/connectionInfo/kubeConfigFile");
    let at = path.child("kubeConfigFile");
    match tree::text(webhook, "/connectionInfo/type") {
        "" => errors.push(Error::required(path.child("type"), "")),
        "InClusterConfig" => {
            if tree::has(webhook, "/connectionInfo/kubeConfigFile") {
                errors.push(Error::invalid(at, file, "can only be set when type=KubeConfigFile"));
            }
        }
        "KubeConfigFile" if file.is_empty() => errors.push(Error::required(at, "")),
        "KubeConfigFile" if !FilePath::new(file).is_absolute() => {
            errors.push(Error::invalid(at, file, "must be an absolute path"));
        }
        "KubeConfigFile" => match std::fs::metadata(file) {
            Err(error) => {
                let text = format!("error loading file: stat {file}: {}", os::explain(&error));
                errors.push(Error::invalid(at, file, &text));
            }
            Ok(found) if !found.is_file() => errors.push(Error::invalid(at, file, "must be a regular file")),
            Ok(_) => {}
        },
        other => {
            // The whole of it, as Go has its fields.
            let file = webhook.pointer("/connectionInfo/kubeConfigFile").unwrap_or(&Value::Null);
            let shown = Some(format!(r#"{{"Type":{},"KubeConfigFile":{file}}}"#, Value::from(other)));
            let error = Error::not_supported(path.child("type"), other, &["InClusterConfig", "KubeConfigFile"]);
            errors.push(Error { shown, ..error });
        }
    }
}

fn read_conditions(conditions: &[Value], path: &Path, errors: &mut Vec<Error>) -> Vec<String> {
    if conditions.len() > CONDITIONS {
        errors.push(Error::too_many(path.clone(), conditions.len(), CONDITIONS));
        return Vec::new();
    }
    let mut expressions: Vec<String> = Vec::new();
    for (at, condition) in conditions.iter().enumerate() {
        let at = path.index(at).child("expression");
        let expression = tree::text(condition, "/expression");
        if expression.trim().is_empty() {
            errors.push(Error::required(at, ""));
        } else if expressions.iter().any(|e| e == expression) {
            errors.push(Error::duplicate(at, expression));
        } else if let Some(why) = expressions::problem(Dialect::Review, expression, ResultType::Bool) {
            errors.push(Error::invalid(at, expression, &why.to_string()));
        } else {
            expressions.push(expression.to_owned());
        }
    }
    expressions
}

/// Dependencies of authorizers.
pub struct AuthorizerDeps {
    /// For the indexes.
    pub reader: Arc<dyn Reader>,
    /// The rules of the `system:node` role.
    pub node_rules: Vec<Rule>,
    /// `--authorization-policy-file`
    pub policy_file: String,
    /// Opens the connections to webhooks, where they do not go straight.
    pub dialer: Option<Dialer>,
}

/// The chain at start.
pub async fn build(configured: &[Configured], parts: &AuthorizerDeps) -> Result<Authorization, ConfigError> {
    let mut members = Vec::new();
    for c in configured {
        let kind = match c.mode {
            Mode::Node => {
                AuthorizerKind::Node(Arc::new(NodeAuthorizer::new(parts.reader.clone(), parts.node_rules.clone())))
            }
            Mode::Rbac => AuthorizerKind::Rbac(Arc::new(Rbac::new(parts.reader.clone(), rbac::SOURCES))),
            Mode::Abac if parts.policy_file.is_empty() => {
                return Err(invalid("authorization-mode ABAC's authorization policy file not passed"));
            }
            Mode::Abac => AuthorizerKind::Abac(Arc::new(Abac::read(&parts.policy_file)?)),
            _ => stateless(c, parts.dialer.clone()).await?,
        };
        members.push(Member::new(&c.name, kind));
    }
    Ok(Authorization::of(members))
}

/// The chain after a change of the file: what has an index is kept, and cannot come to be.
pub async fn rebuild(
    configured: &[Configured],
    before: &Authorization,
    dialer: Option<Dialer>,
) -> Result<Vec<Member>, ConfigError> {
    let mut members = Vec::new();
    for c in configured {
        let kind = match c.mode {
            Mode::Node | Mode::Rbac | Mode::Abac => before.kind(c.mode).ok_or_else(|| {
                let mode = c.mode.name();
                invalid(format!(
                    "authorizer type {mode} is not allowed if it was not enabled at initial server startup"
                ))
            })?,
            _ => stateless(c, dialer.clone()).await?,
        };
        members.push(Member::new(&c.name, kind));
    }
    Ok(members)
}

async fn stateless(configured: &Configured, dialer: Option<Dialer>) -> Result<AuthorizerKind, ConfigError> {
    let Some((kubeconfig, options)) = &configured.webhook else {
        return Ok(if configured.mode == Mode::AlwaysAllow {
            AuthorizerKind::AlwaysAllow
        } else {
            AuthorizerKind::AlwaysDeny
        });
    };
    let remote = Remote::from_kubeconfig(kubeconfig, dialer).await.map_err(|e| invalid(e.to_string()))?;
    Ok(AuthorizerKind::Webhook(Arc::new(Webhook::new(remote, options.clone()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Vec<Mode>, String> {
        let flags = FlagSet::of("kube-apiserver", args).expect("flags");
        from_flags(&flags).map(|all| all.iter().map(|c| c.mode).collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn authorization_modes() {
        assert_eq!(parse(&[]), Ok(vec![Mode::AlwaysAllow]));
        assert_eq!(parse(&["--authorization-mode=Node,RBAC"]), Ok(vec![Mode::Node, Mode::Rbac]));
        for (args, want) in [
            (&["--authorization-mode=Magic"][..], r#"authorization-mode "Magic" is not a valid mode"#),
            (
                &["--authorization-mode=RBAC,RBAC"],
                r#"authorization-mode ["RBAC" "RBAC"] has mode specified more than once"#,
            ),
            (&["--authorization-mode=ABAC"], "authorization-mode ABAC's authorization policy file not passed"),
            (&["--authorization-mode=Webhook"], "authorization-mode Webhook's authorization config file not passed"),
            (
                &["--authorization-mode=RBAC", "--authorization-policy-file=/x"],
                "cannot specify --authorization-policy-file without mode ABAC",
            ),
            (
                &["--authorization-mode=RBAC", "--authorization-webhook-config-file=/x"],
                "cannot specify --authorization-webhook-config-file without mode Webhook",
            ),
            (
                &["--authorization-mode=RBAC", "--authorization-config=/x"],
                "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined",
            ),
            (
                &["--authorization-config=/nowhere/x"],
                "failed to load AuthorizationConfiguration from file: open /nowhere/x: no such file or directory",
            ),
        ] {
            assert_eq!(parse(args), Err(want.to_owned()), "{args:?}");
        }
    }

    fn read_file(authorizers: &str, required: &[Mode]) -> Result<Vec<Configured>, String> {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n{authorizers}"
        );
        load(text.as_bytes(), required).map_err(|e| e.to_string())
    }

    #[test]
    fn files_are_checked() {
        let webhook = |more: &str| {
            format!(
                "- type: Webhook\n  name: w\n  webhook:\n    subjectAccessReviewVersion: v1\n    failurePolicy: Deny\n    timeout: 3s\n    connectionInfo: {{type: InClusterConfig}}\n{more}"
            )
        };
        for (authorizers, want) in [
            ("", "authorizers: Required value: at least one authorization mode must be defined"),
            (
                "- {type: Magic, name: m}",
                r#"authorizers[0].type: Unsupported value: "Magic": supported values: "ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook""#,
            ),
            (
                "- {type: RBAC, name: rbac}\n- {type: RBAC, name: rbac2}",
                r#"authorizers[1].type: Duplicate value: "RBAC""#,
            ),
            ("- {type: RBAC}", "authorizers[0].name: Required value"),
            ("- {type: RBAC, name: other}", "expected name rbac for authorizer RBAC instead of other"),
            ("- {type: Webhook, name: w}", "authorizers[0].webhook: Required value: required when type=Webhook"),
            (
                "- {type: RBAC, name: rbac, webhook: {}}",
                r#"authorizers[0].webhook: Invalid value: "non-null": may only be specified when type=Webhook"#,
            ),
            (
                &webhook("    timeout: 31s\n").replacen("    timeout: 3s\n", "", 1),
                r#"authorizers[0].timeout: Invalid value: "31s": must be > 0s and <= 30s"#,
            ),
            (
                &webhook("    authorizedTTL: -1s\n"),
                r#"authorizers[0].authorizedTTL: Invalid value: "-1s": must be > 0s"#,
            ),
            (
                &webhook("    matchConditions: [{expression: 'true'}]\n"),
                "authorizers[0].matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified",
            ),
            (
                &webhook(
                    "    matchConditionSubjectAccessReviewVersion: v1\n    matchConditions: [{expression: ' '}]\n",
                ),
                "authorizers[0].matchConditions[0].expression: Required value",
            ),
            (
                &webhook("").replace("failurePolicy: Deny", "failurePolicy: Open"),
                r#"authorizers[0].failurePolicy: Unsupported value: "Open": supported values: "NoOpinion", "Deny""#,
            ),
            (
                &webhook("").replace("{type: InClusterConfig}", "{type: KubeConfigFile, kubeConfigFile: x}"),
                r#"authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "x": must be an absolute path"#,
            ),
            (
                &webhook("").replace("{type: InClusterConfig}", "{type: KubeConfigFile, kubeConfigFile: /nowhere/x}"),
                r#"authorizers[0].connectionInfo.kubeConfigFile: Invalid value: "/nowhere/x": error loading file: stat /nowhere/x: no such file or directory"#,
            ),
        ] {
            assert_eq!(read_file(authorizers, &[]), Err(want.to_owned()), "{authorizers}");
        }
        let unknown = read_file("- {type: RBAC, name: rbac, nope: 1}", &[]).expect_err("strict");
        assert!(
            unknown.starts_with("failed to load AuthorizationConfiguration from file: ") && unknown.contains("nope"),
            "{unknown}"
        );
        let two =
            format!("{}{}- {{type: Node, name: node}}\n", webhook(""), webhook("").replace("name: w", "name: w2"));
        let all = read_file(&two, &[Mode::Node]).expect("fine");
        assert_eq!(all.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["w", "w2", "node"]);
        let options = &all[0].webhook.as_ref().expect("a webhook").1;
        assert_eq!(
            (options.authorized_ttl, options.unauthorized_ttl),
            (Duration::from_secs(300), Duration::from_secs(30))
        );
        assert_eq!(read_file(&two, &[Mode::Rbac]), Err("missing required types: [RBAC]".into()));
        let uncached = read_file(&webhook("    cacheAuthorizedRequests: false\n"), &[]).expect("fine");
        assert!(uncached[0].webhook.as_ref().expect("a webhook").1.authorized_ttl.is_zero());
    }
}
