//! Actions of a plan: one vocabulary of writes for every controller.
//!
//! A plan never talks to the server; it returns [`Action`]s, compared by value in table tests and carried out by
//! [`super::executor::Executor`].

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::Resource;
use serde::Serialize;
use serde_json::{Value, json};
pub use shared::client::path::join;

use super::object::{Held, Metadata};

/// Ways to merge a patch body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 7386.
    Merge,
    /// Kubernetes' own, with list merge keys.
    Strategic,
    /// RFC 6902.
    Json,
}

impl PatchKind {
    /// The media type of the request body.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Json => "application/json-patch+json",
        }
    }
}

/// One step a controller wants done.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "fields of variants say by their names what they are")]
pub enum Action {
    /// POST `body` to the collection at `path`.
    Create { path: String, body: Value },
    /// PUT `body` to the object (or subresource) at `path`.
    Update { path: String, body: Value },
    /// PUT `body` to the status at `path`. It says what this controller saw, whoever else wrote to the object meanwhile:
    /// after a conflict it goes onto the newest version.
    Report { path: String, body: Value },
    /// PATCH the object (or subresource) at `path`.
    Patch { path: String, kind: PatchKind, body: Value },
    /// Server-side apply of `body` to the object (or subresource) at `path`, which names the manager.
    Apply { path: String, body: Value },
    /// DELETE the object at `path`; `options` is a DeleteOptions body.
    Delete { path: String, options: Value },
    /// Create a pod on behalf of `parent`, with the events and expectations that go with it.
    CreatePod { pod: Arc<Pod>, parent: ObjectReference },
    /// Delete a pod on behalf of `parent`, with the events and expectations that go with it.
    DeletePod { namespace: String, name: String, uid: String, parent: ObjectReference },
    /// Tell the user.
    Event { about: ObjectReference, warning: bool, reason: &'static str, message: String },
    /// Look at the same key again after this time.
    RequeueAfter(Duration),
}

impl Action {
    /// POST of a typed object.
    pub fn create<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let path = K::url_path(&(), object.meta().namespace.as_deref());
        Self::Create { path, body: body(object) }
    }

    /// PUT of a typed object, guarded by the resourceVersion it carries.
    pub fn update<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        Self::Update { path: path_of::<K>(object.meta()), body: body(object) }
    }

    /// PUT of a subresource.
    pub fn update_sub<K>(object: &K, subresource: &str) -> Self
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        Self::Update { path: format!("{}/{subresource}", path_of::<K>(object.meta())), body: body(object) }
    }

    /// PUT of `/status`, guarded by the resourceVersion it carries.
    pub fn update_status<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        Self::update_sub(object, "status")
    }

    /// PUT of `/status` of whatever version the server has.
    pub fn report<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        Self::Report { path: format!("{}/status", path_of::<K>(object.meta())), body: body(object) }
    }

    /// PATCH of an object.
    pub fn patch<K: Held>(meta: &K::Meta, kind: PatchKind, body: Value) -> Self {
        Self::Patch { path: object_path::<K>(meta), kind, body }
    }

    /// PATCH of `/status`.
    pub fn patch_status<K: Held>(meta: &K::Meta, kind: PatchKind, body: Value) -> Self {
        Self::Patch { path: format!("{}/status", object_path::<K>(meta)), kind, body }
    }

    /// Server-side apply of a status for a manager, who takes what others hold.
    pub fn apply_status<K: Held>(meta: &K::Meta, manager: &str, status: Value) -> Self {
        let path = format!("{}/status?fieldManager={manager}&force=true", object_path::<K>(meta));
        let mut about = json!({"name": meta.name(), "uid": meta.uid()});
        if let Some(namespace) = meta.namespace() {
            about["namespace"] = json!(namespace);
        }
        let body = json!({"apiVersion": K::Api::api_version(&()), "kind": K::Api::kind(&()), "metadata": about,
            "status": status});
        Self::Apply { path, body }
    }

    /// DELETE guarded by the object's uid.
    pub fn delete<K: Held>(meta: &K::Meta) -> Self {
        Self::delete_with::<K>(meta, json!({"preconditions": {"uid": meta.uid()}}))
    }

    /// DELETE with explicit options.
    pub fn delete_with<K: Held>(meta: &K::Meta, options: Value) -> Self {
        Self::Delete { path: object_path::<K>(meta), options }
    }

    /// Reports whether the action writes a whole status, which comes after what it reports on.
    #[must_use]
    pub fn is_status(&self) -> bool {
        match self {
            Self::Report { .. } => true,
            Self::Update { path, .. } => path.ends_with("/status"),
            _ => false,
        }
    }

    /// A Normal event.
    #[must_use]
    pub fn normal(about: &ObjectReference, reason: &'static str, message: String) -> Self {
        Self::Event { about: about.clone(), warning: false, reason, message }
    }

    /// A Warning event.
    #[must_use]
    pub fn warning(about: &ObjectReference, reason: &'static str, message: String) -> Self {
        Self::Event { about: about.clone(), warning: true, reason, message }
    }
}

/// The request path of an object.
pub fn object_path<K: Held>(meta: &K::Meta) -> String {
    path_of::<K::Api>(meta)
}

fn path_of<K: Resource<DynamicType = ()>>(meta: &impl Metadata) -> String {
    join(&K::url_path(&(), meta.namespace()), meta.name().unwrap_or_default())
}

/// A typed object as a JSON body. Typed objects always serialise: their keys are strings.
pub fn body<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSet;

    use super::*;

    #[test]
    fn status_writes_are_told_apart() {
        let set: StatefulSet =
            serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "ns"}})).expect("set");
        for (action, want) in [
            (Action::report(&set), true),
            (Action::update_status(&set), true),
            (Action::update(&set), false),
            (Action::delete::<StatefulSet>(&set.metadata), false),
        ] {
            assert_eq!(action.is_status(), want, "{action:?}");
        }
        let Action::Report { path, .. } = Action::report(&set) else { panic!("not a report") };
        assert_eq!(path, "/apis/apps/v1/namespaces/ns/statefulsets/s/status");
    }
}
