//! Tests of encryption configurations: prefixes of stored values, and errors.

use super::*;

fn table(text: &str) -> Result<Transformers, String> {
    let read = config::read("test", text.as_bytes()).map_err(|e| e.to_string())?;
    let transformers = Transformers::default();
    transformers.set(read.table);
    Ok(transformers)
}

/// 32 times the byte `1`.
const KEY: &str = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=";

fn config(resources: &str, providers: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: {resources}\n  providers: {providers}\n"
    )
}

fn keys(cipher: &str, names: &[&str]) -> String {
    let keys: Vec<String> = names.iter().map(|n| format!("{{name: {n}, secret: {KEY}}}")).collect();
    format!("{{{cipher}: {{keys: [{}]}}}}", keys.join(","))
}

const PATH: &str = "/registry/secrets/a/b";
const TAIL: &str = "/secrets/a/b";

#[tokio::test]
async fn prefixes_are_upstreams() {
    for cipher in ["aescbc", "aesgcm", "secretbox"] {
        let t = table(&config("[secrets]", &format!("[{}, {{identity: {{}}}}]", keys(cipher, &["k1", "k2"]))))
            .expect("good");
        let sealed = t.transform_to_storage(PATH, TAIL, b"plain".to_vec()).await.expect("sealed");
        assert!(sealed.starts_with(format!("k8s:enc:{cipher}:v1:k1:").as_bytes()));
        assert_eq!(
            t.transform_from_storage(PATH, TAIL, sealed.clone()).await,
            Ok(Transformed { bytes: b"plain".to_vec(), stale: false })
        );
        // Written before there was encryption.
        assert_eq!(
            t.transform_from_storage(PATH, TAIL, b"old".to_vec()).await,
            Ok(Transformed { bytes: b"old".to_vec(), stale: true })
        );
        // With another key first, the same bytes are stale.
        let t = table(&config("[secrets]", &format!("[{}]", keys(cipher, &["k2", "k1"])))).expect("good");
        assert_eq!(
            t.transform_from_storage(PATH, TAIL, sealed.clone()).await,
            Ok(Transformed { bytes: b"plain".to_vec(), stale: true })
        );
        assert_eq!(t.transform_from_storage(PATH, TAIL, b"old".to_vec()).await, Err(Error::NoPrefix));
        let t = table(&config("[secrets]", "[{identity: {}}]")).expect("good");
        assert_eq!(t.transform_from_storage(PATH, TAIL, sealed).await, Err(Error::Identity));
        // Other resources are not touched.
        assert_eq!(t.transform_to_storage("/registry/pods/a/b", "/pods/a/b", b"x".to_vec()).await, Ok(b"x".to_vec()));
    }
}

#[test]
fn rules_cover_keys() {
    for (resource, tail, covered) in [
        ("secrets", "/secrets/a/b", true),
        ("secrets", "/secretsx/a/b", false),
        ("services", "/services/specs/a/b", true),
        ("endpoints", "/services/endpoints/a/b", true),
        ("*.apps", "/deployments/a/b", true),
        ("*.apps", "/pods/a/b", false),
        ("*.", "/pods/a/b", true),
        ("*.", "/deployments/a/b", false),
        ("widgets.example.com", "/example.com/widgets/a/b", true),
        ("*.example.com", "/example.com/widgets/a/b", true),
        ("*.example.com", "/example.org/widgets/a/b", false),
        ("*.*", "/anything", true),
    ] {
        let text = config(&format!("['{resource}']"), "[{identity: {}}]");
        let read = config::read("test", text.as_bytes()).map_err(|e| e.to_string()).expect("good");
        assert_eq!(read.table.find(tail).is_some(), covered, "{resource} {tail}");
    }
}

#[test]
fn invalid_configurations_name_the_field() {
    let long = "{aescbc: {keys: [{name: a, secret: MTEx}]}}";
    for (resources, providers, why) in [
        ("[]", "[{identity: {}}]", "resources[0].resources: "),
        ("[secrets]", "[]", "resources[0].providers: Required value: at least one provider is required"),
        ("[secrets]", "[{}]", "resources[0].providers[0]: provider does not contain any of the expected providers"),
        ("[secrets]", "[{aescbc: {keys: []}}]", "resources[0].providers[0].aescbc.keys: Required value"),
        ("[secrets]", long, "error decoding"),
        ("[secrets]", &format!("[{long}]"), "expected 1 of the key sizes [16 24 32], got 3"),
        ("[secrets]", &format!("[{}]", keys("secretbox", &["a", "a"])), "keys[1].name: Duplicate value: \"a\""),
        ("['*']", "[{identity: {}}]", "use '*.' to encrypt"),
        ("[secrets, secrets]", "[{identity: {}}]", "the resource is specified more than once"),
        ("['*.*', secrets]", "[{identity: {}}]", "masked by '*.*'"),
        ("[secrets]", "[{kms: {apiVersion: v2, name: a, endpoint: 'tcp://x'}}]", "endpoint scheme should be unix"),
        ("[secrets]", "[{kms: {name: a, endpoint: 'unix:///x'}}]", "KMSv1 is deprecated"),
    ] {
        let error = table(&config(resources, providers)).err().unwrap_or_default();
        assert!(error.contains(why), "{resources} {providers}: {error:?}");
        assert!(!error.contains(KEY), "secrets are not shown");
    }
}
