//! Credentials of registries from plugins: programs that are asked for those of an image
//! (`--image-credential-provider-config`, `--image-credential-provider-bin-dir`). Answers for upstream's
//! `pkg/credentialprovider/plugin`.
//!
//! In: the configuration and its programs. Out: a docker configuration for an image, kept as long as the plugin says.

use super::keyring::{Credentials, Keyring, Origin, fits};
use super::names::repository;
use super::service_account::{self, Account, AccountIdentity, TokenAttributes};
use crate::keyed_lock::KeyedLocks;
use crate::metrics;
use crate::objects::ObjectSource;
use crate::volumes::tokens::Tokens;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use shared::flags::{FeatureGates, parse_duration, parse_nanos};
use shared::status::field::{Error, Path as Field, aggregate};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

const KIND: &str = "CredentialProviderConfig";
const GROUP: &str = "credentialprovider.kubelet.k8s.io";
/// Time that a plugin may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// Most bytes of an answer that are read.
const LARGEST: u64 = 1 << 20;
/// Most answers that are kept.
const MOST_KEPT: usize = 1024;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Provider {
    name: String,
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    api_version: String,
    args: Vec<String>,
    env: Vec<Variable>,
    token_attributes: Option<TokenAttributes>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    value: String,
}

/// Answer of a plugin.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CredentialProviderResponse {
    kind: String,
    api_version: String,
    cache_key_type: String,
    cache_duration: Option<String>,
    auth: Option<HashMap<String, Login>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Login {
    username: String,
    password: String,
}

struct Plugin {
    about: Provider,
    program: PathBuf,
    /// Docker configurations with the time when they end, by what they are for.
    kept: Mutex<HashMap<String, (Instant, Vec<u8>)>>,
    /// Locks of the questions, by image and account: a second one about the same may find the first one's answer kept, and
    /// one about another does not wait.
    asking: KeyedLocks<String>,
}

/// Reasons why plugins cannot be used as configured, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum ProviderConfigError {
    /// A file, or a folder of files, cannot be read.
    #[error("unable to read {}: {cause}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// A folder has no files of configuration.
    #[error("no configuration files found in directory {:?}", .0.display().to_string())]
    NoFiles(PathBuf),
    /// A file is no configuration.
    #[error(transparent)]
    File(#[from] shared::config::ConfigError),
    /// A plugin's part is of another form.
    #[error(transparent)]
    Provider(#[from] serde_json::Error),
    /// Fields are wrong.
    #[error("failed to validate credential provider config: {}", aggregate(.0))]
    Invalid(Vec<Error>),
    /// The folder of programs is not there.
    #[error("plugin binary directory {} did not exist", .0.display())]
    NoFolder(PathBuf),
    /// A plugin's program is not there.
    #[error("plugin binary executable {} did not exist", .0.display())]
    NoProgram(PathBuf),
}

/// Reasons why a plugin gives no credentials, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum PluginError {
    /// More time than it is given.
    #[error("credential provider plugin timed out")]
    Late,
    /// No run at all.
    #[error("error execing credential provider plugin {plugin}: {cause}")]
    Start {
        plugin: String,
        #[source]
        cause: io::Error,
    },
    /// A run that failed.
    #[error("error execing credential provider plugin {plugin}: {status}")]
    Ended { plugin: String, status: ExitStatus },
    /// An answer that is no document.
    #[error("failed to decode credential provider response: {0}")]
    Decode(#[from] serde_json::Error),
    /// An answer of another version.
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual \
         apiVersion:{actual}"
    )]
    Version { expected: String, actual: String },
    /// An answer for no kind of images.
    #[error("credential provider plugin did not return a valid cacheKeyType: {0:?}")]
    CacheKey(String),
}

/// The plugins of the node.
#[derive(Default)]
pub struct Providers {
    plugins: Vec<Plugin>,
    /// Tokens of pods' service accounts for the plugins that want one.
    tokens: Tokens,
}

impl Providers {
    /// The plugins of `--image-credential-provider-config` and `--image-credential-provider-bin-dir`; none unless both are set.
    ///
    /// # Errors
    /// A file is not usable, or a program is not there.
    pub fn of(configuration: &Path, programs: &Path, gates: &FeatureGates) -> anyhow::Result<Self> {
        if configuration.as_os_str().is_empty() || programs.as_os_str().is_empty() {
            return Ok(Self::default());
        }
        let loaded = Self::load(configuration, programs, gates);
        loaded.map_err(|e| anyhow::anyhow!("failed to register CRI auth plugins: {e}"))
    }

    /// Reads a configuration, or all of a folder, whose programs are in `programs`.
    ///
    /// # Errors
    /// A file is not usable, or a program is not there.
    fn load(configuration: &Path, programs: &Path, gates: &FeatureGates) -> Result<Self, ProviderConfigError> {
        let (mut providers, mut hash) = (Vec::new(), Sha256::new());
        for file in files(configuration)? {
            let unreadable = |cause| ProviderConfigError::Read { path: file.clone(), cause };
            hash.update(std::fs::read(&file).map_err(unreadable)?);
            let value = shared::config::load(&file.to_string_lossy(), KIND)?;
            let read: Vec<Provider> = match &value["providers"] {
                Value::Null => Vec::new(),
                list => serde_json::from_value(list.clone())?,
            };
            providers.extend(read);
        }
        let problems = problems(&providers, gates.enabled(service_account::GATE));
        if !problems.is_empty() {
            return Err(ProviderConfigError::Invalid(problems));
        }
        if !programs.is_dir() {
            return Err(ProviderConfigError::NoFolder(programs.to_owned()));
        }
        let plugin = |about: Provider| {
            let program = programs.join(&about.name);
            if !program.exists() {
                return Err(ProviderConfigError::NoProgram(program));
            }
            Ok(Plugin { about, program, kept: Mutex::default(), asking: KeyedLocks::default() })
        };
        let plugins = providers.into_iter().map(plugin).collect::<Result<_, _>>()?;
        let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        metrics::credential_configuration(&format!("sha256:{hash}"));
        Ok(Self { plugins, tokens: Tokens::default() })
    }

    /// The credentials that plugins have for a pod's image. A plugin that fails leaves the others to be asked.
    pub(super) async fn credentials(&self, objects: &dyn ObjectSource, pod: &Pod, image: &str) -> Vec<Credentials> {
        let repository = repository(image);
        let mut keyring = Keyring::default();
        let fits = |plugin: &&Plugin| plugin.about.match_images.iter().any(|key| fits(key, &repository));
        for plugin in self.plugins.iter().filter(fits) {
            let account = match &plugin.about.token_attributes {
                Some(attributes) => attributes.account(objects, &self.tokens, pod).await,
                None => Account::None,
            };
            let account = match account {
                Account::Skip => continue,
                Account::None => None,
                Account::Some(account) => Some(account),
            };
            match plugin.configuration(&repository, account.as_deref(), Instant::now()).await {
                Ok(configuration) => {
                    let origin = account.map_or(Origin::Node, |account| Origin::ServiceAccount(account.source));
                    keyring.add(&configuration, &origin);
                }
                Err(error) => {
                    let plugin = plugin.about.name.as_str();
                    tracing::error!(
                        plugin,
                        image,
                        %error,
                        "Failed getting credential from external registry credential provider"
                    );
                }
            }
        }
        keyring.lookup(&repository)
    }

    /// Forgets the tokens of a pod that is gone.
    pub(super) fn forget(&self, pod_uid: &str) {
        self.tokens.forget(pod_uid);
    }
}

/// The configuration's files: it alone, or those of a folder in the order of their names.
fn files(configuration: &Path) -> Result<Vec<PathBuf>, ProviderConfigError> {
    if !configuration.is_dir() {
        return Ok(vec![configuration.to_owned()]);
    }
    let unreadable = |cause| ProviderConfigError::Read { path: configuration.to_owned(), cause };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(configuration).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let is_ours = path.extension().is_some_and(|end| matches!(end.to_str(), Some("json" | "yaml" | "yml")));
        files.extend((is_ours && path.is_file()).then_some(path));
    }
    files.sort();
    if files.is_empty() {
        return Err(ProviderConfigError::NoFiles(configuration.to_owned()));
    }
    Ok(files)
}

fn problems(providers: &[Provider], takes_tokens: bool) -> Vec<Error> {
    let at = Field::new("providers");
    if providers.is_empty() {
        return vec![Error::required(at, "at least 1 item in plugins is required")];
    }
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for provider in providers {
        all.extend(named(provider, &at));
        if !names.insert(provider.name.as_str()) {
            all.push(Error::duplicate(at.child("name"), provider.name.clone()));
        }
        let versions = ["v1", "v1beta1", "v1alpha1"].map(|version| format!("{GROUP}/{version}"));
        if provider.api_version.is_empty() {
            all.push(Error::required(at.child("apiVersion"), ""));
        } else if !versions.contains(&provider.api_version) {
            all.push(Error::not_supported(at.child("apiVersion"), provider.api_version.clone(), &versions));
        }
        if provider.match_images.is_empty() {
            all.push(Error::required(at.child("matchImages"), "at least 1 item in matchImages is required"));
        }
        let field = at.child("defaultCacheDuration");
        match provider.default_cache_duration.as_deref().map(parse_nanos) {
            None => all.push(Error::required(field, "")),
            Some(Ok(0..)) => {}
            Some(_) => {
                let text = provider.default_cache_duration.clone().unwrap_or_default();
                all.push(Error::invalid(field, text, "must be greater than or equal to 0"));
            }
        }
        if let Some(attributes) = &provider.token_attributes {
            all.extend(attributes.problems(&at.child("tokenAttributes"), &provider.api_version, takes_tokens));
        }
    }
    all
}

fn named(provider: &Provider, at: &Field) -> Option<Error> {
    let (name, at) = (provider.name.as_str(), at.child("name"));
    let detail = match name {
        "" => return Some(Error::required(at, "name is required")),
        "." => "name cannot be '.'",
        ".." => "name cannot be '..'",
        _ if name.contains(' ') => "name cannot contain spaces",
        _ if name.contains('/') => "name cannot contain path separators",
        _ => return None,
    };
    Some(Error::invalid(at, name, detail))
}

fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or(repository)
}

impl Plugin {
    /// The docker configuration for an image, as it is kept or as the plugin gives it.
    async fn configuration(
        &self,
        repository: &str,
        account: Option<&AccountIdentity>,
        now: Instant,
    ) -> Result<Vec<u8>, PluginError> {
        let of_account = account.map_or("", |account| account.cache_key.as_str());
        let keys = [repository, registry(repository), ""].map(|key| format!("{key}\0{of_account}"));
        let kept = || {
            let kept = self.kept.lock();
            keys.iter().find_map(|key| kept.get(key).filter(|(end, _)| *end > now).map(|(_, found)| found.clone()))
        };
        if let Some(found) = kept() {
            return Ok(found);
        }
        let _turn = self.asking.lock(&keys[0]).await;
        if let Some(found) = kept() {
            return Ok(found);
        }
        let begun = Instant::now();
        let answer = self.ask(repository, account).await;
        metrics::credential_plugin(&self.about.name, begun.elapsed(), answer.is_err());
        let answer = answer?;
        let key = match answer.cache_key_type.as_str() {
            "Image" => &keys[0],
            "Registry" => &keys[1],
            "Global" => &keys[2],
            other => return Err(PluginError::CacheKey(other.to_owned())),
        };
        let auths: HashMap<String, Value> = answer
            .auth
            .unwrap_or_default()
            .into_iter()
            .map(|(host, login)| (host, json!({"username": login.username, "password": login.password})))
            .collect();
        let configuration = json!({"auths": auths}).to_string().into_bytes();
        let told = answer.cache_duration.as_deref().or(self.about.default_cache_duration.as_deref());
        let lasts = told.and_then(|text| parse_duration(text).ok()).unwrap_or_default();
        if let Some(end) = now.checked_add(lasts).filter(|_| !lasts.is_zero()) {
            let mut kept = self.kept.lock();
            kept.retain(|_, (end, _)| *end > now);
            if kept.len() < MOST_KEPT {
                kept.insert(key.clone(), (end, configuration.clone()));
            }
        }
        Ok(configuration)
    }

    async fn ask(
        &self,
        image: &str,
        account: Option<&AccountIdentity>,
    ) -> Result<CredentialProviderResponse, PluginError> {
        let version = &self.about.api_version;
        let mut request = json!({"kind": "CredentialProviderRequest", "apiVersion": version, "image": image});
        if let Some(account) = account {
            request["serviceAccountToken"] = json!(account.token);
            if !account.annotations.is_empty() {
                request["serviceAccountAnnotations"] = json!(account.annotations);
            }
        }
        let request = request.to_string();
        let output = tokio::time::timeout(DEADLINE, self.execute(request.as_bytes())).await;
        let output = output.map_err(|_| PluginError::Late)??;
        let answer: CredentialProviderResponse = serde_json::from_slice(&output)?;
        if answer.kind != "CredentialProviderResponse" || answer.api_version != *version {
            return Err(PluginError::Version { expected: version.clone(), actual: answer.api_version });
        }
        Ok(answer)
    }

    async fn execute(&self, request: &[u8]) -> Result<Vec<u8>, PluginError> {
        let failed = |cause| PluginError::Start { plugin: self.about.name.clone(), cause };
        let mut command = Command::new(&self.program);
        command.args(&self.about.args).envs(self.about.env.iter().map(|variable| (&variable.name, &variable.value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut input) = child.stdin.take() {
            // A plugin that does not read what it is asked may answer all the same.
            let _ = input.write_all(request).await;
        }
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(LARGEST).read_to_end(&mut output).await.map_err(failed)?;
        }
        let status = child.wait().await.map_err(failed)?;
        if status.success() { Ok(output) } else { Err(PluginError::Ended { plugin: self.about.name.clone(), status }) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::service_account::tests::{Accounts, pod as account_pod};
    use super::*;
    use crate::objects::Standalone;
    use std::os::unix::fs::PermissionsExt as _;

    /// A plugin that counts how often it is asked, and whose answers last as told.
    fn node(answer: &str, provider: &str) -> (tempfile::TempDir, Result<Providers, ProviderConfigError>) {
        let folder = tempfile::tempdir().expect("folder");
        let program = folder.path().join("plugin");
        let script =
            format!("#!/bin/sh\ncat >> {0}/asked\necho >> {0}/asked\necho '{answer}'\n", folder.path().display());
        std::fs::write(&program, script).expect("script");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("mode");
        let configuration = folder.path().join("c.yaml");
        let text =
            format!("apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{provider}]\n");
        std::fs::write(&configuration, text).expect("configuration");
        let loaded = Providers::load(&configuration, folder.path(), &FeatureGates::default());
        (folder, loaded)
    }

    fn answer(key: &str, lasts: &str) -> String {
        json!({"kind": "CredentialProviderResponse", "apiVersion": format!("{GROUP}/v1"), "cacheKeyType": key,
            "cacheDuration": lasts, "auth": {"*.example.com": {"username": "u", "password": "p"}}})
        .to_string()
    }

    fn provider(name: &str) -> String {
        json!({"name": name, "matchImages": ["*.example.com"], "defaultCacheDuration": "1h",
            "apiVersion": format!("{GROUP}/v1")})
        .to_string()
    }

    async fn asked(images: &[&str], key: &str, lasts: &str) -> (Vec<usize>, usize) {
        let (folder, providers) = node(&answer(key, lasts), &provider("plugin"));
        let providers = providers.expect("loaded");
        let mut found = Vec::new();
        for image in images {
            found.push(providers.credentials(&Standalone, &Pod::default(), image).await.len());
        }
        (found, std::fs::read_to_string(folder.path().join("asked")).unwrap_or_default().lines().count())
    }

    #[tokio::test]
    async fn answers_are_kept_for_what_they_are_for() {
        let images = ["a.example.com/x:1", "a.example.com/x:2", "a.example.com/y", "b.example.com/y", "other.io/z"];
        for (key, lasts, times) in [("Image", "1h", 3), ("Registry", "1h", 2), ("Global", "1h", 1), ("Image", "0s", 4)]
        {
            assert_eq!(asked(&images, key, lasts).await, (vec![1, 1, 1, 1, 0], times), "{key} {lasts}");
        }
        assert_eq!(asked(&images[..1], "Galaxy", "1h").await, (vec![0], 1));
    }

    #[tokio::test]
    async fn plugins_are_asked_for_images_in_full() {
        let (folder, providers) = node(&answer("Image", "1h"), &provider("plugin"));
        let providers = providers.expect("loaded");
        let found = providers.credentials(&Standalone, &Pod::default(), "a.example.com/team/x:1").await;
        assert_eq!((found[0].auth.username.as_str(), found[0].auth.password.as_str()), ("u", "p"));
        let asked: Value =
            serde_json::from_slice(&std::fs::read(folder.path().join("asked")).expect("asked")).expect("JSON");
        let expected = json!({"kind": "CredentialProviderRequest", "apiVersion": format!("{GROUP}/v1"),
            "image": "a.example.com/team/x"});
        assert_eq!(asked, expected);
    }

    #[tokio::test]
    async fn plugins_get_tokens_of_the_accounts_of_pods() {
        for (kind, times) in [("Token", 2), ("ServiceAccount", 1)] {
            let attributes = json!({"serviceAccountTokenAudience": "r.io", "cacheType": kind,
                "requireServiceAccount": true, "optionalServiceAccountAnnotationKeys": ["r.io/team"]});
            let mut provider: Value = serde_json::from_str(&provider("plugin")).expect("provider");
            provider["tokenAttributes"] = attributes;
            let (folder, providers) = node(&answer("Image", "1h"), &provider.to_string());
            let providers = providers.expect("loaded");
            for uid in ["a", "b", "a"] {
                let found = providers.credentials(&Accounts, &account_pod(uid, "builder"), "a.example.com/x").await;
                let [found] = found.as_slice() else { panic!("{found:?}") };
                let Origin::ServiceAccount(source) = &found.origin else { panic!("{found:?}") };
                assert_eq!(source.uid, "account");
            }
            let none = providers.credentials(&Accounts, &account_pod("c", "other"), "a.example.com/x").await;
            assert!(none.is_empty(), "{none:?}");
            let asked = std::fs::read_to_string(folder.path().join("asked")).expect("asked");
            assert_eq!(asked.lines().count(), times, "{kind}");
            let first: Value = serde_json::from_str(asked.lines().next().expect("a question")).expect("JSON");
            assert_eq!(first["serviceAccountToken"], "r.io-a");
            assert_eq!(first["serviceAccountAnnotations"], json!({"r.io/team": "a"}));
        }
    }

    #[test]
    fn unusable_configurations_are_refused() {
        let whole: Value = serde_json::from_str(&provider("plugin")).expect("provider");
        let with = |field: &str, value: Value| {
            let mut changed = whole.clone();
            changed[field] = value;
            changed.to_string()
        };
        for (provider, text) in [
            (String::new(), "providers: Required value: at least 1 item in plugins is required"),
            (
                with("name", json!("../x")),
                "providers.name: Invalid value: \"../x\": name cannot contain path separators",
            ),
            (with("name", json!("absent")), "did not exist"),
            (with("matchImages", json!([])), "providers.matchImages: Required value"),
            (with("apiVersion", json!("v7")), "providers.apiVersion: Unsupported value: \"v7\""),
            (with("defaultCacheDuration", json!("-1s")), "must be greater than or equal to 0"),
            (
                with("tokenAttributes", json!({"serviceAccountTokenAudience": "a", "requireServiceAccount": true})),
                "providers.tokenAttributes.cacheType: Required value",
            ),
            (format!("{whole}, {whole}"), "providers.name: Duplicate value: \"plugin\""),
        ] {
            let error = node("", &provider).1.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(text), "{error}");
        }
    }
}
