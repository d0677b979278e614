//! Records of who may use the images that this node has pulled, so that a pod without credentials does not run what
//! another's pulled (`KubeletEnsureSecretPulledImages`).
//!
//! In `<root>/image_manager`: `pulling/` holds an `ImagePullIntent` for each image being pulled, `pulled/` an
//! `ImagePulledRecord` for each that was, both in files named `sha256-` and the digest of the image's name or id. Answers
//! for upstream's `pkg/kubelet/images/pullmanager`, whose files these are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::keyring::{Credentials, Origin, SecretSource};
use super::names::{check_pattern, repository};
use super::service_account::ServiceAccountSource;
use crate::files;

/// Secrets remembered for each image (upstream: 100).
const SECRETS: usize = 100;
/// Service accounts remembered for each image (upstream: 100).
const ACCOUNTS: usize = 100;
/// Largest record that is read.
const LARGEST: u64 = 1 << 20;

/// `imagePullCredentialsVerificationPolicy` with its allow list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// Any pod may use any image that is there.
    Never,
    /// Images that the kubelet did not pull itself are for everybody.
    #[default]
    ExceptPreloaded,
    /// Images that the list names are for everybody: exact names, or everything below `name/*`.
    ExceptListed(Vec<String>),
    /// All images are verified.
    Always,
}

impl Verification {
    /// From the configuration.
    ///
    /// # Errors
    /// All that is wrong: there is no such policy, a list without the policy that reads it.
    pub fn parse(policy: &str, list: &[String]) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let parsed = match policy {
            "NeverVerify" => Self::Never,
            "" | "NeverVerifyPreloadedImages" => Self::ExceptPreloaded,
            "NeverVerifyAllowlistedImages" => Self::ExceptListed(list.to_vec()),
            "AlwaysVerify" => Self::Always,
            other => {
                problems.push(format!(
                    "option {other:?} specified for imagePullCredentialsVerificationPolicy. Valid options are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
                ));
                Self::default()
            }
        };
        if !list.is_empty() && policy != "NeverVerifyAllowlistedImages" {
            problems.push("can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"".to_owned());
        } else if let Some(error) = list.iter().find_map(|pattern| check_pattern(pattern).err()) {
            problems.push(format!("invalid image pattern in `preloadedImagesVerificationAllowlist`: {error}"));
        }
        if problems.is_empty() { Ok(parsed) } else { Err(problems) }
    }

    fn asks(&self, repository: &str, was_pulled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::ExceptPreloaded => was_pulled,
            Self::ExceptListed(list) => !list.iter().any(|entry| is_listed(entry, repository)),
            Self::Always => true,
        }
    }
}

fn is_listed(entry: &str, repository: &str) -> bool {
    match entry.strip_suffix("/*") {
        Some(below) => repository.strip_prefix(below).is_some_and(|rest| rest.starts_with('/')),
        None => entry == repository,
    }
}

/// `ImagePulledRecord`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    kind: String,
    api_version: String,
    last_updated_time: Option<String>,
    image_ref: String,
    /// By the image's name without tag and digest.
    credential_mapping: BTreeMap<String, KnownCredentials>,
}

/// `ImagePullCredentials`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KnownCredentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<KnownSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<KnownAccount>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

/// `ImagePullSecret`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KnownSecret {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

/// `ImagePullServiceAccount`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KnownAccount {
    namespace: String,
    name: String,
    uid: String,
}

/// Owner of the credentials of a pull.
enum Puller {
    /// Everybody on the node.
    Anybody,
    Secret(KnownSecret),
    Account(KnownAccount),
}

impl Puller {
    fn of(credentials: &Credentials) -> Self {
        match credentials.origin.clone() {
            Origin::Node => Self::Anybody,
            Origin::Secret(SecretSource { uid, namespace, name }) => {
                Self::Secret(KnownSecret { uid, namespace, name, credential_hash: credentials.hash() })
            }
            Origin::ServiceAccount(ServiceAccountSource { uid, namespace, name }) => {
                Self::Account(KnownAccount { namespace, name, uid })
            }
        }
    }
}

impl KnownSecret {
    fn is_of_same_secret(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

/// `ImagePullIntent`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

/// Verdict on a pod's use of an image that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageAccess {
    /// The pod may use it.
    Allowed,
    /// The pod has to show credentials by a pull.
    MustPull,
}

/// The records; see the module.
#[derive(Debug)]
pub struct PulledImages {
    folder: PathBuf,
    verification: Verification,
    /// Pulls of an image that are under way, beside the file that says so.
    pulling: Mutex<HashMap<String, usize>>,
}

impl PulledImages {
    /// Records below the kubelet's root directory.
    pub fn new(root: &Path, verification: Verification) -> Self {
        Self { folder: root.join("image_manager"), verification, pulling: Mutex::default() }
    }

    /// Decides whether a pod may use an image that is there, by the credentials it has
    /// (`PullManager.MustAttemptImagePull`). A pod whose credentials are those that worked before is remembered.
    ///
    /// # Errors
    /// A record cannot be read: nothing is known of the image.
    pub fn access(&self, image: &str, id: &str, credentials: &[Credentials]) -> io::Result<ImageAccess> {
        let repository = &repository(image);
        let _held = self.pulling.lock();
        let record: Option<Record> = self.read("pulled", id)?;
        let was_pulled = record.is_some() || self.read::<Intent>("pulling", image)?.is_some();
        if !self.verification.asks(repository, was_pulled) {
            return Ok(ImageAccess::Allowed);
        }
        let Some(record) = record else { return Ok(ImageAccess::MustPull) };
        let Some(known) = record.credential_mapping.get(repository) else { return Ok(ImageAccess::MustPull) };
        if known.node_pods_accessible {
            return Ok(ImageAccess::Allowed);
        }
        let mut shown = Vec::new();
        for credentials in credentials {
            match Puller::of(credentials) {
                Puller::Secret(secret) => shown.push(secret),
                Puller::Account(account) if known.kubernetes_service_accounts.contains(&account) => {
                    return Ok(ImageAccess::Allowed);
                }
                Puller::Account(_) | Puller::Anybody => {}
            }
        }
        if shown.iter().any(|secret| known.kubernetes_secrets.contains(secret)) {
            return Ok(ImageAccess::Allowed);
        }
        let same = |secret: &&KnownSecret| {
            known.kubernetes_secrets.iter().any(|known| known.credential_hash == secret.credential_hash)
        };
        let Some(secret) = shown.iter().find(same).cloned() else { return Ok(ImageAccess::MustPull) };
        self.add(record, repository, Puller::Secret(secret))?;
        Ok(ImageAccess::Allowed)
    }

    /// Notes that an image is about to be pulled. Without that note none is: the node could not tell afterwards whose it
    /// is.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(&self, image: &str) -> io::Result<()> {
        let mut pulling = self.pulling.lock();
        let intent =
            Intent { kind: "ImagePullIntent".to_owned(), api_version: API_VERSION.to_owned(), image: image.to_owned() };
        self.write("pulling", image, &intent)?;
        *pulling.entry(image.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Notes that a pull failed.
    pub fn failed(&self, image: &str) {
        self.end(&mut self.pulling.lock(), image);
    }

    /// Notes that an image was pulled, with these credentials or without.
    pub fn pulled(&self, image: &str, id: &str, credentials: Option<&Credentials>) {
        let mut pulling = self.pulling.lock();
        let record = self.read("pulled", id).ok().flatten().unwrap_or_default();
        let record = Record { image_ref: id.to_owned(), ..record };
        match self.add(record, &repository(image), credentials.map_or(Puller::Anybody, Puller::of)) {
            Ok(()) => self.end(&mut pulling, image),
            // The intent stays, and with it that the image is not for everybody.
            Err(error) => tracing::error!(image, %error, "Failed to write image pulled record"),
        }
    }

    /// Removes records of images that are not there any more, but for those written after `since`.
    pub fn prune(&self, present: &BTreeSet<String>, since: Timestamp) {
        let _held = self.pulling.lock();
        let Ok(entries) = fs::read_dir(self.folder.join("pulled")) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let Ok(Some(record)) = read_file::<Record>(&path) else { continue };
            let time = record.last_updated_time.as_deref().and_then(|time| time.parse::<Timestamp>().ok());
            if !present.contains(&record.image_ref) && time.is_none_or(|time| time < since) {
                fs::remove_file(&path).ok();
            }
        }
    }

    /// Counts the intents and the records on the disk.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let count = |kind: &str| fs::read_dir(self.folder.join(kind)).into_iter().flatten().flatten().count();
        (count("pulling"), count("pulled"))
    }

    fn end(&self, pulling: &mut HashMap<String, usize>, image: &str) {
        let left = pulling.get(image).copied().unwrap_or(1) - 1;
        if left > 0 {
            pulling.insert(image.to_owned(), left);
            return;
        }
        pulling.remove(image);
        if let Err(error) = fs::remove_file(self.path("pulling", image))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(image, %error, "Failed to remove image pull intent");
        }
    }

    /// Adds those that a pull was for to a record. Answers for upstream's `pulledRecordMergeNewCreds`.
    fn add(&self, mut record: Record, repository: &str, puller: Puller) -> io::Result<()> {
        let known = record.credential_mapping.entry(repository.to_owned()).or_default();
        match puller {
            Puller::Anybody => *known = KnownCredentials { node_pods_accessible: true, ..KnownCredentials::default() },
            _ if known.node_pods_accessible => {}
            Puller::Account(account) => {
                let accounts = &mut known.kubernetes_service_accounts;
                accounts.retain(|other| *other != account);
                accounts.push(account);
                let surplus = accounts.len().saturating_sub(ACCOUNTS);
                accounts.drain(..surplus);
                accounts.sort();
            }
            Puller::Secret(secret) => {
                known.kubernetes_secrets.retain(|other| !other.is_of_same_secret(&secret));
                known.kubernetes_secrets.push(secret);
                let surplus = known.kubernetes_secrets.len().saturating_sub(SECRETS);
                known.kubernetes_secrets.drain(..surplus);
                known
                    .kubernetes_secrets
                    .sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
            }
        }
        record.kind = "ImagePulledRecord".to_owned();
        record.api_version = API_VERSION.to_owned();
        record.last_updated_time = Some(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let id = record.image_ref.clone();
        self.write("pulled", &id, &record)
    }

    fn path(&self, folder: &str, name: &str) -> PathBuf {
        let digest: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(folder).join(format!("sha256-{digest}"))
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, folder: &str, name: &str) -> io::Result<Option<T>> {
        read_file(&self.path(folder, name))
    }

    /// Writes a file whole or not at all.
    fn write(&self, folder: &str, name: &str, value: &impl Serialize) -> io::Result<()> {
        let path = self.path(folder, name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        files::write_json(&path, value)
    }
}

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// None when there is none, or one that makes no sense: upstream drops what it cannot decode, and the image has to be
/// pulled again.
fn read_file<T: for<'de> Deserialize<'de>>(path: &Path) -> io::Result<Option<T>> {
    match fs::metadata(path) {
        Ok(about) if about.len() > LARGEST => return Ok(None),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok(serde_json::from_slice(&fs::read(path)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::v1::AuthConfig;

    const IMAGE: &str = "r.io/team/app:1";

    fn shown(uid: &str, password: &str) -> Credentials {
        let secret = SecretSource { uid: uid.into(), namespace: "n".into(), name: format!("secret-{uid}") };
        let auth = AuthConfig { username: "u".into(), password: password.into(), ..AuthConfig::default() };
        Credentials { auth, origin: Origin::Secret(secret) }
    }

    fn images(verification: Verification) -> (PulledImages, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        (PulledImages::new(folder.path(), verification), folder)
    }

    #[test]
    fn an_image_is_for_those_whose_credentials_pulled_it() {
        let (images, folder) = images(Verification::default());
        let access = |credentials: &[Credentials]| images.access(IMAGE, "sha256:id", credentials).expect("known");
        assert_eq!(access(&[]), ImageAccess::Allowed, "one that was there before");
        images.begin(IMAGE).expect("noted");
        assert_eq!(access(&[]), ImageAccess::MustPull, "one that is being pulled");
        images.pulled(IMAGE, "sha256:id", Some(&shown("1", "right")));
        for (name, credentials, expected) in [
            ("no credentials", vec![], ImageAccess::MustPull),
            ("the same secret", vec![shown("1", "right")], ImageAccess::Allowed),
            ("the same secret with another password", vec![shown("1", "wrong")], ImageAccess::MustPull),
            ("another secret with the same password", vec![shown("2", "right")], ImageAccess::Allowed),
            ("another secret", vec![shown("3", "wrong")], ImageAccess::MustPull),
            ("one of several", vec![shown("3", "wrong"), shown("1", "right")], ImageAccess::Allowed),
        ] {
            assert_eq!(access(&credentials), expected, "{name}");
        }
        let again = PulledImages::new(folder.path(), Verification::default());
        assert_eq!(again.access(IMAGE, "sha256:id", &[shown("2", "right")]).expect("known"), ImageAccess::Allowed);
        assert_eq!(
            again.access("r.io/other:1", "sha256:id", &[shown("1", "right")]).expect("known"),
            ImageAccess::MustPull
        );
    }

    #[test]
    fn an_image_that_a_plugin_gave_credentials_for_is_for_the_account() {
        let (images, folder) = images(Verification::default());
        let account = |uid: &str, password: &str| Credentials {
            origin: Origin::ServiceAccount(ServiceAccountSource {
                uid: uid.into(),
                namespace: "n".into(),
                name: "builder".into(),
            }),
            ..shown(uid, password)
        };
        images.begin(IMAGE).expect("noted");
        images.pulled(IMAGE, "sha256:id", Some(&account("1", "token")));
        let access = |credentials: &[Credentials]| images.access(IMAGE, "sha256:id", credentials).expect("known");
        assert_eq!(access(&[]), ImageAccess::MustPull, "not for everybody");
        assert_eq!(access(&[account("1", "other token")]), ImageAccess::Allowed);
        assert_eq!(access(&[account("2", "token")]), ImageAccess::MustPull);
        assert_eq!(access(&[shown("1", "token")]), ImageAccess::MustPull, "a secret is no account");
        let file = fs::read_dir(folder.path().join("image_manager/pulled")).expect("folder").next().expect("a record");
        let text = fs::read_to_string(file.expect("an entry").path()).expect("text");
        let expected = r#""kubernetesServiceAccounts":[{"namespace":"n","name":"builder","uid":"1"}]"#;
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn an_image_pulled_without_a_secret_is_for_all() {
        let (images, _folder) = images(Verification::default());
        images.begin(IMAGE).expect("noted");
        images.pulled(IMAGE, "sha256:id", None);
        assert_eq!(images.access(IMAGE, "sha256:id", &[]).expect("known"), ImageAccess::Allowed);
        images.pulled(IMAGE, "sha256:id", Some(&shown("1", "right")));
        assert_eq!(images.access(IMAGE, "sha256:id", &[]).expect("known"), ImageAccess::Allowed);
    }

    #[test]
    fn a_failed_pull_leaves_no_intent() {
        let (images, _folder) = images(Verification::default());
        images.begin(IMAGE).expect("noted");
        images.begin(IMAGE).expect("noted");
        images.failed(IMAGE);
        assert_eq!(images.access(IMAGE, "sha256:id", &[]).expect("known"), ImageAccess::MustPull, "another one runs");
        images.failed(IMAGE);
        assert_eq!(images.access(IMAGE, "sha256:id", &[]).expect("known"), ImageAccess::Allowed);
    }

    #[test]
    fn policies_say_which_images_are_verified() {
        let list: Vec<String> = ["r.io/team/*", "r.io/one", "docker.io/library/*"].map(str::to_owned).into();
        for (policy, list, image, pulled, expected) in [
            ("NeverVerify", vec![], IMAGE, true, false),
            ("", vec![], IMAGE, false, false),
            ("NeverVerifyPreloadedImages", vec![], IMAGE, true, true),
            ("NeverVerifyAllowlistedImages", list.clone(), IMAGE, false, false),
            ("NeverVerifyAllowlistedImages", list.clone(), "r.io/teams/x", false, true),
            ("NeverVerifyAllowlistedImages", list.clone(), "r.io/one:2", false, false),
            ("NeverVerifyAllowlistedImages", list.clone(), IMAGE, true, false),
            ("NeverVerifyAllowlistedImages", list.clone(), "busybox", true, false),
            ("NeverVerifyAllowlistedImages", list.clone(), "team/busybox", true, true),
            ("AlwaysVerify", vec![], IMAGE, false, true),
        ] {
            let policy = Verification::parse(policy, &list).expect("a policy");
            assert_eq!(policy.asks(&repository(image), pulled), expected, "{policy:?} {image} {pulled}");
        }
        assert!(Verification::parse("Sometimes", &[]).is_err());
        assert!(Verification::parse("AlwaysVerify", &list).is_err());
        let bad =
            Verification::parse("NeverVerifyAllowlistedImages", &["busybox".to_owned()]).expect_err("no full name");
        let text = "invalid image pattern in `preloadedImagesVerificationAllowlist`: neither tag nor digest is accepted in an image reference: busybox";
        assert_eq!(bad, [text]);
    }

    #[test]
    fn records_of_images_that_are_gone_go() {
        let (images, _folder) = images(Verification::default());
        images.pulled(IMAGE, "sha256:id", Some(&shown("1", "right")));
        images.prune(&BTreeSet::new(), Timestamp::UNIX_EPOCH);
        assert_eq!(images.access(IMAGE, "sha256:id", &[]).expect("known"), ImageAccess::MustPull, "written later");
        images.prune(&BTreeSet::from(["sha256:id".to_owned()]), Timestamp::MAX);
        assert_eq!(images.access(IMAGE, "sha256:id", &[]).expect("known"), ImageAccess::MustPull, "still there");
        images.prune(&BTreeSet::new(), Timestamp::MAX);
        assert_eq!(images.access(IMAGE, "sha256:id", &[]).expect("known"), ImageAccess::Allowed);
    }
}
