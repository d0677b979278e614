//! Files and flags, and what is said of bad ones.

use super::*;

fn file(jwt: &str) -> Result<Configured, String> {
    let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n{jwt}");
    load(text.as_bytes(), ConfigConditions { own: &["https://own".to_owned()], egress: true })
        .map_err(|e| e.to_string())
}

fn issuer(issuer: &str, rest: &str) -> String {
    format!("jwt:\n- issuer: {{{issuer}}}\n{rest}")
}

const GOOD: &str = "url: 'https://i', audiences: [a]";
const SUB: &str = "  claimMappings: {username: {claim: sub, prefix: ''}}\n";

#[test]
fn files_are_checked() {
    for (text, want) in [
        (issuer("audiences: [a]", SUB), "jwt[0].issuer.url: Required value"),
        (
            issuer("url: 'http://i', audiences: [a]", SUB),
            r#"jwt[0].issuer.url: Invalid value: "http://i": URL scheme must be https"#,
        ),
        (
            issuer("url: 'https://a b', audiences: [a]", SUB),
            r#"jwt[0].issuer.url: Invalid value: "https://a b": parse "https://a b": invalid character " " in host name"#,
        ),
        (
            issuer("url: 'https://own', audiences: [a]", SUB),
            r#"jwt[0].issuer.url: Invalid value: "https://own": URL must not overlap with disallowed issuers: [https://own]"#,
        ),
        (
            issuer("url: 'https://u:p@i', audiences: [a]", SUB),
            r#"jwt[0].issuer.url: Invalid value: "https://u:p@i": URL must not contain a username or password"#,
        ),
        (
            issuer("url: 'https://i?x=1', audiences: [a]", SUB),
            r#"jwt[0].issuer.url: Invalid value: "https://i?x=1": URL must not contain a query"#,
        ),
        (
            issuer("url: 'https://i'", SUB),
            "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
        ),
        (
            issuer("url: 'https://i', audiences: [a, b]", SUB),
            r#"jwt[0].issuer.audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be MatchAny for multiple audiences"#,
        ),
        (
            issuer("url: 'https://i', discoveryURL: 'https://i/', audiences: [a]", SUB),
            r#"jwt[0].issuer.discoveryURL: Invalid value: "https://i/": discoveryURL must be different from URL"#,
        ),
        (
            issuer(GOOD, &format!("{SUB}  claimValidationRules: [{{expression: claims.a}}]\n")),
            r#"jwt[0].claimValidationRules[0].expression: Invalid value: "claims.a": must evaluate to bool"#,
        ),
        (issuer(GOOD, ""), "jwt[0].claimMappings.username: Required value: claim or expression is required"),
        (
            issuer(GOOD, "  claimMappings: {username: {claim: sub}}\n"),
            "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
        ),
        (
            issuer(GOOD, "  claimMappings: {username: {expression: 'claims.email'}}\n"),
            r#"jwt[0].claimMappings.username.expression: Invalid value: "claims.email": claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression"#,
        ),
        (
            issuer(
                GOOD,
                "  claimMappings: {username: {claim: sub, prefix: ''}, extra: [{key: 'x.k8s.io/a', valueExpression: 'claims.a'}]}\n",
            ),
            r#"jwt[0].claimMappings.extra[0].key: Invalid value: "x.k8s.io/a": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use"#,
        ),
        (
            issuer(GOOD, &format!("{SUB}  claimValidationRules: [{{claim: a, message: m}}]\n")),
            r#"jwt[0].claimValidationRules[0].message: Invalid value: "m": may not be specified when claim is set"#,
        ),
        (
            issuer(GOOD, &format!("{SUB}  userValidationRules: [{{expression: 'true'}}, {{expression: 'true'}}]\n")),
            r#"jwt[0].userValidationRules[1].expression: Duplicate value: "true""#,
        ),
        (
            "anonymous: {enabled: false, conditions: [{path: /livez}]}\n".to_owned(),
            r#"anonymous.conditions: Invalid value: [{"Path":"/livez"}]: enabled should be set to true when conditions are defined"#,
        ),
    ] {
        assert_eq!(file(&text).expect_err("refused"), want, "{text}");
    }
    let two = format!("{}{}", issuer(GOOD, SUB), issuer(GOOD, SUB).replace("jwt:\n", ""));
    assert_eq!(file(&two).expect_err("refused"), r#"jwt[1].issuer.url: Duplicate value: "https://i""#);
    let good = file(&format!("{}anonymous: {{enabled: true, conditions: [{{path: /livez}}]}}\n", issuer(GOOD, SUB)))
        .expect("fine");
    assert_eq!(good.anonymous, Some(Anonymous { enabled: true, paths: vec!["/livez".into()] }));
    assert_eq!(good.issuers[0].username, Mapping::Claim { claim: "sub".into(), prefix: String::new() });
}

#[test]
fn egress_of_issuers_needs_its_feature_gate() {
    let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";
    let said = |way: &str, egress| {
        let jwt = issuer(&format!("{GOOD}, egressSelectorType: {way}"), SUB);
        let loaded = load(format!("{text}{jwt}").as_bytes(), ConfigConditions { own: &[], egress });
        loaded.err().map(|e| e.to_string())
    };
    let wrong = |way: &str, why: &str| format!("jwt[0].issuer.egressSelectorType: Invalid value: \"{way}\": {why}");
    let off = "egress selector is not supported when StructuredAuthenticationConfigurationEgressSelector feature gate is disabled";
    let unknown = "egress selector must be either controlplane or cluster";
    assert_eq!(said("cluster", true), None);
    assert_eq!(said("etcd", true), Some(wrong("etcd", unknown)));
    assert_eq!(said("cluster", false), Some(wrong("cluster", off)));
    assert_eq!(said("etcd", false), Some(format!("[{}, {}]", wrong("etcd", off), wrong("etcd", unknown))));
    let gates = |text: &str| FlagSet::of("kube-apiserver", &[text]).expect("flags");
    let gate = "--feature-gates=StructuredAuthenticationConfigurationEgressSelector";
    assert!(!ConfigConditions::from_flags(&gates(&format!("{gate}=false")), &[]).egress);
    assert!(ConfigConditions::from_flags(&gates("--profiling"), &[]).egress);
}

fn flags(args: &[&str]) -> Result<Configured, String> {
    from_flags(&FlagSet::of("kube-apiserver", args).expect("flags"), &[]).map_err(|e| e.to_string())
}

#[test]
fn oidc_flags_configure_one_issuer() {
    assert_eq!(flags(&[]), Ok(Configured::default()));
    let both = "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set";
    assert_eq!(flags(&["--oidc-issuer-url=https://i"]), Err(both.into()));
    let base = ["--oidc-issuer-url=https://i", "--oidc-client-id=c"];
    let prefix = |more: &[&str]| {
        let args: Vec<&str> = base.iter().chain(more).copied().collect();
        match flags(&args).expect("fine").issuers.remove(0).username {
            Mapping::Claim { claim, prefix } => format!("{claim}|{prefix}"),
            other => format!("{other:?}"),
        }
    };
    assert_eq!(prefix(&[]), "sub|https://i#");
    assert_eq!(prefix(&["--oidc-username-claim=email"]), "email|");
    assert_eq!(prefix(&["--oidc-username-prefix=-"]), "sub|");
    assert_eq!(prefix(&["--oidc-username-prefix=o:"]), "sub|o:");
    assert_eq!(
        flags(&["--oidc-client-id=c", "--oidc-issuer-url=https://i", "--authentication-config=/x"]),
        Err("authentication-config file and oidc-* flags are mutually exclusive".into())
    );
    let alg = flags(&["--oidc-client-id=c", "--oidc-issuer-url=https://i", "--oidc-signing-algs=HS256"]);
    assert_eq!(alg, Err("oidc: unsupported signing alg: \"HS256\"".into()));
}
