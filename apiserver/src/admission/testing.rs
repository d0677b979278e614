//! A cluster in memory for tests: what is put into it is what the cache knows and what live reads find.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use proto::resources::Row;
use serde_json::{Value, json};
use shared::authn::UserInfo;
use shared::run::{Shutdown, TaskGroup};
use shared::status::Status;

use super::webhooks::{Caller, WebhookDeps};
use super::{Attributes, Operation, Plugin, Reinvocation};
use crate::api::{Api, Changed, Changes, DeleteArgs, Pipeline, Reader, Source, Stored};
use crate::authz::{Authorization, Mode};
use crate::egress::Egress;
use crate::machinery::GroupResource;
use crate::machinery::tree;
use crate::rows::Rows;

type Key = (String, String, String, String);

/// Fixed cluster for tests of plugins.
#[derive(Default)]
pub(crate) struct Fixed {
    objects: Arc<Mutex<BTreeMap<Key, Arc<Value>>>>,
    version: Arc<AtomicU64>,
    bell: Arc<tokio::sync::Notify>,
}

fn key(group: &str, plural: &str, namespace: &str, name: &str) -> Key {
    (group.into(), plural.into(), namespace.into(), name.into())
}

impl Fixed {
    /// Puts an object in, under its own name and namespace.
    pub(crate) fn put(&self, group: &str, plural: &str, object: Value) {
        let key = key(group, plural, tree::namespace(&object), tree::name(&object));
        self.objects.lock().insert(key, Arc::new(object));
        self.version.fetch_add(1, Ordering::SeqCst);
        self.bell.notify_one();
    }

    /// Takes one out.
    pub(crate) fn remove(&self, group: &str, plural: &str, namespace: &str, name: &str) {
        self.objects.lock().remove(&key(group, plural, namespace, name));
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Dependencies of webhooks and policies with an authorizer that allows everything.
    pub(crate) fn means(self: &Arc<Self>) -> WebhookDeps {
        let authorization = Arc::new(Authorization::new(&[Mode::AlwaysAllow], self.clone(), Vec::new()));
        let caller = Caller::new(self.clone(), TaskGroup::new(), Shutdown::new(), false, Egress::default());
        WebhookDeps {
            reader: self.clone(),
            rows: Rows::default(),
            authorization,
            caller: Arc::new(caller),
            api: self.api(),
        }
    }

    /// The pipeline over the same objects.
    pub(crate) fn api(self: &Arc<Self>) -> Api {
        Api::new(Arc::new(Objects(self.clone())), Rows::default())
    }
}

impl Reader for Fixed {
    fn get(&self, resource: GroupResource<'_>, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.objects.lock().get(&key(resource.group, resource.plural, namespace, name)).cloned()
    }

    fn list(&self, resource: GroupResource<'_>, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let objects = self.objects.lock();
        let wanted = |k: &Key| k.0 == resource.group && k.1 == resource.plural && namespace.is_none_or(|n| n == k.2);
        objects.iter().filter(|(k, _)| wanted(k)).map(|(_, o)| o.clone()).collect()
    }

    fn version(&self, _: GroupResource<'_>) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    fn synced(&self, _: GroupResource<'_>) -> bool {
        true
    }

    fn source(&self, resource: GroupResource<'_>) -> Option<Arc<dyn Source>> {
        let held = Self { objects: self.objects.clone(), version: self.version.clone(), bell: self.bell.clone() };
        Some(Arc::new(Whole { held, group: resource.group.to_owned(), plural: resource.plural.to_owned() }))
    }

    fn changed<'a>(&'a self, resource: GroupResource<'a>, since: u64) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            while self.version(resource) == since {
                self.bell.notified().await;
            }
        })
    }

    fn stored(&self, resource: GroupResource<'_>) -> Option<Stored> {
        Some(Stored { objects: self.list(resource, None).len() as u64, size: 1000 })
    }
}

/// A resource of [`Fixed`], told as a whole at every change.
struct Whole {
    held: Fixed,
    group: String,
    plural: String,
}

impl Source for Whole {
    fn version(&self) -> u64 {
        self.held.version(GroupResource::new("", "")) + 1
    }

    fn synced(&self) -> bool {
        true
    }

    fn changes(&self, _: u64) -> Changes {
        let version = self.version();
        let objects = self.held.list(GroupResource::new(&self.group, &self.plural), None).into_iter().map(|o| {
            Changed { namespace: tree::namespace(&o).to_owned(), name: tree::name(&o).to_owned(), object: Some(o) }
        });
        Changes { version, complete: true, objects: objects.collect() }
    }
}

struct Objects(Arc<Fixed>);

#[async_trait]
impl Pipeline for Objects {
    async fn get(&self, resource: &Row, namespace: &str, name: &str) -> Result<Value, Status> {
        let found = self.0.get(GroupResource::of(resource), namespace, name);
        found.map(|o| o.as_ref().clone()).ok_or_else(|| Status::not_found(&resource.group, &resource.plural, name))
    }

    async fn list(&self, resource: &Row, namespace: Option<&str>) -> Result<Vec<Value>, Status> {
        let found = self.0.list(GroupResource::of(resource), namespace);
        Ok(found.into_iter().map(|o| o.as_ref().clone()).collect())
    }

    async fn create(&self, _: &UserInfo, resource: &Row, namespace: &str, mut object: Value) -> Result<Value, Status> {
        let name = tree::name(&object).to_owned();
        if self.0.get(GroupResource::of(resource), namespace, &name).is_some() {
            return Err(Status::already_exists(&resource.group, &resource.plural, &name));
        }
        *tree::field(&mut object, &["metadata", "resourceVersion"]) = "1".into();
        self.0.put(&resource.group, &resource.plural, object.clone());
        Ok(object)
    }

    async fn update(&self, _: &UserInfo, resource: &Row, _: &str, mut object: Value) -> Result<Value, Status> {
        let (namespace, name) = (tree::namespace(&object).to_owned(), tree::name(&object).to_owned());
        let stored = self.get(resource, &namespace, &name).await?;
        let (asked, there) =
            (tree::text(&object, "/metadata/resourceVersion"), tree::text(&stored, "/metadata/resourceVersion"));
        if !asked.is_empty() && asked != there {
            return Err(Status::stale(&resource.group, &resource.plural, &name));
        }
        let next = there.parse::<u64>().unwrap_or(0) + 1;
        *tree::field(&mut object, &["metadata", "resourceVersion"]) = next.to_string().into();
        self.0.put(&resource.group, &resource.plural, object.clone());
        Ok(object)
    }

    /// Applies as if no other manager owned fields.
    async fn apply(
        &self,
        user: &UserInfo,
        resource: &Row,
        subresource: &str,
        _: &str,
        object: Value,
    ) -> Result<Value, Status> {
        let mut there = self.get(resource, tree::namespace(&object), tree::name(&object)).await?;
        proto::merge::merge_patch::apply(&mut there, object);
        self.update(user, resource, subresource, there).await
    }

    async fn delete(
        &self,
        _: &UserInfo,
        resource: &Row,
        namespace: &str,
        name: &str,
        _: DeleteArgs,
    ) -> Result<(), Status> {
        self.get(resource, namespace, name).await?;
        self.0.remove(&resource.group, &resource.plural, namespace, name);
        Ok(())
    }
}

/// Result of a plugin's admission of a write.
pub(crate) struct AdmissionOutcome {
    /// The object then.
    pub object: Value,
    /// For the client.
    pub warnings: Vec<String>,
    /// For the audit log.
    pub annotations: BTreeMap<String, String>,
    /// Error of a refused write.
    pub refused: Option<Status>,
    /// There was a second round of mutation.
    pub again: bool,
}

/// One write, to be put before a plugin.
pub(crate) struct Write<'a> {
    resource: Row,
    subresource: &'a str,
    namespace: &'a str,
    name: String,
    operation: Operation,
    user: UserInfo,
    object: Option<Value>,
    old: Option<Value>,
    options: Value,
    /// Warnings given.
    pub warnings: Vec<String>,
    dry_run: bool,
}

fn row(group: &str, plural: &str) -> Row {
    let all = proto::resources::optional().iter().chain(proto::resources::all());
    all.rev().find(|r| r.group == group && r.plural == plural).map(Row::from).expect("a resource of that name")
}

impl<'a> Write<'a> {
    /// A create.
    pub(crate) fn create(group: &str, plural: &str, namespace: &'a str, object: Value) -> Self {
        Self {
            resource: row(group, plural),
            subresource: "",
            namespace,
            name: String::new(),
            operation: Operation::Create,
            user: UserInfo { name: "alice".into(), ..UserInfo::default() },
            object: Some(object),
            old: None,
            options: Value::Null,
            warnings: Vec::new(),
            dry_run: false,
        }
    }

    /// An update in namespace `e`, or at cluster scope.
    pub(crate) fn update(group: &str, plural: &str, subresource: &'a str, name: &str, new: Value, old: Value) -> Self {
        let namespace = if row(group, plural).namespaced { "e" } else { "" };
        let base = Self::create(group, plural, namespace, new);
        Self { operation: Operation::Update, subresource, name: name.to_owned(), old: Some(old), ..base }
    }

    /// Any request, as a table describes it.
    pub(crate) fn of(request: &'a Value) -> Self {
        let text = |field: &str| request[field].as_str().unwrap_or_default();
        let object = |field: &str| Some(request[field].clone()).filter(Value::is_object);
        let (operation, options) = match text("op") {
            "CREATE" => (Operation::Create, "CreateOptions"),
            "UPDATE" => (Operation::Update, "UpdateOptions"),
            "DELETE" => (Operation::Delete, "DeleteOptions"),
            _ => (Operation::Connect, ""),
        };
        let user = &request["user"];
        let groups = tree::strings(user, "/groups");
        let extra = serde_json::from_value(user["extra"].clone()).unwrap_or_default();
        Self {
            user: UserInfo {
                name: tree::text(user, "/name").into(),
                uid: tree::text(user, "/uid").into(),
                groups,
                extra,
            },
            subresource: text("subresource"),
            name: text("name").to_owned(),
            operation,
            object: object("object"),
            old: object("old"),
            options: match options {
                "" => Value::Null,
                kind => json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"}),
            },
            dry_run: request["dryRun"] == true,
            ..Self::create(text("group"), text("resource"), text("namespace"), Value::Null)
        }
    }

    /// Runs the plugin: one round of validation, or as many of mutation as needed.
    pub(crate) async fn told(mut self, plugin: &dyn Plugin, mutating: bool) -> AdmissionOutcome {
        let mut annotations = BTreeMap::new();
        let mut attributes = self.attributes(&mut annotations);
        let (mut outcome, mut again) = (Ok(()), false);
        if !mutating {
            outcome = plugin.validate(&mut attributes).await;
        } else if attributes.operation != Operation::Delete {
            outcome = plugin.admit(&mut attributes).await;
            again = outcome.is_ok() && attributes.reinvocation.begin_second();
            if again {
                outcome = plugin.admit(&mut attributes).await;
            }
        }
        let object = self.object.take().unwrap_or_default();
        AdmissionOutcome { object, warnings: self.warnings, annotations, refused: outcome.err(), again }
    }

    /// On a subresource of a named object.
    pub(crate) fn on(self, subresource: &'a str, name: &str) -> Self {
        Self { subresource, name: name.to_owned(), ..self }
    }

    /// By somebody else than alice.
    pub(crate) fn by(self, user: &UserInfo) -> Self {
        Self { user: user.clone(), ..self }
    }

    /// Makes the write a dry run.
    pub(crate) fn dry(self) -> Self {
        Self { dry_run: true, ..self }
    }

    fn attributes<'b>(&'b mut self, annotations: &'b mut BTreeMap<String, String>) -> Attributes<'b> {
        Attributes {
            resource: &self.resource,
            subresource: self.subresource,
            namespace: self.namespace,
            name: &self.name,
            operation: self.operation,
            user: &self.user,
            object: self.object.as_mut(),
            old_object: self.old.as_ref(),
            options: &self.options,
            dry_run: self.dry_run,
            warnings: &mut self.warnings,
            annotations,
            reinvocation: Reinvocation::default(),
        }
    }

    /// The object after a plugin changed it.
    pub(crate) async fn admit(mut self, plugin: &dyn Plugin) -> Result<Value, Status> {
        let mut annotations = BTreeMap::new();
        plugin.admit(&mut self.attributes(&mut annotations)).await?;
        Ok(self.object.take().unwrap_or_default())
    }

    /// The object after a plugin changed it, in both rounds if it asks for the second.
    pub(crate) async fn admit_twice(mut self, plugin: &dyn Plugin) -> Result<Value, Status> {
        let mut annotations = BTreeMap::new();
        let mut attributes = self.attributes(&mut annotations);
        plugin.admit(&mut attributes).await?;
        if attributes.reinvocation.begin_second() {
            plugin.admit(&mut attributes).await?;
        }
        Ok(self.object.take().unwrap_or_default())
    }

    /// Warnings and annotations of a plugin that judged it.
    pub(crate) async fn judged(
        mut self,
        plugin: &dyn Plugin,
    ) -> Result<(Vec<String>, BTreeMap<String, String>), Status> {
        let mut annotations = BTreeMap::new();
        plugin.validate(&mut self.attributes(&mut annotations)).await?;
        Ok((self.warnings, annotations))
    }

    /// The object after a plugin judged it.
    pub(crate) async fn validate(mut self, plugin: &dyn Plugin) -> Result<Value, Status> {
        let mut annotations = BTreeMap::new();
        plugin.validate(&mut self.attributes(&mut annotations)).await?;
        Ok(self.object.take().unwrap_or_default())
    }
}
