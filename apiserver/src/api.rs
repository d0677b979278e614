//! The ports between the rooms of the apiserver: what a request is about ([`RequestInfo`]), how policies read
//! objects without touching etcd ([`Reader`]) and how the server's own parts write objects through the same
//! pipeline as everybody else ([`Api`]).
//!
//! Nothing here knows HTTP or etcd.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use proto::Value;
use proto::resources::{Resource, Row};
use shared::authn::UserInfo;
use shared::flags::FlagSet;
use shared::run::{Shutdown, TaskGroup};
use shared::status::Status;

use crate::egress::Egress;
use crate::machinery::GroupResource;
use crate::rows::Rows;

/// Request info: verb, resource, namespace and name, read from method and path alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// True for paths below `/api/<version>` and `/apis/<group>/<version>` that name a resource.
    pub is_resource: bool,
    /// `get list watch create update patch delete deletecollection`, or the lower-case method off resources.
    pub verb: String,
    /// `api`, `apis` or empty.
    pub api_prefix: String,
    /// API group, empty for the core group.
    pub api_group: String,
    /// API version.
    pub api_version: String,
    /// Namespace, empty at cluster scope.
    pub namespace: String,
    /// Plural resource name.
    pub resource: String,
    /// First segment after the object's name, or empty.
    pub subresource: String,
    /// Object name, or empty.
    pub name: String,
    /// The path as requested, without the query.
    pub path: String,
    /// Segments from the resource name on.
    pub parts: Vec<String>,
    /// True where the path leads through a namespace to a resource in it.
    pub below_namespace: bool,
}

impl RequestInfo {
    /// True when the URL itself names an object (and not only a field selector).
    pub fn names_object(&self) -> bool {
        self.parts.len() > 1
    }
}

/// Reads from the watch cache: never waits, never fails, may be a moment behind etcd.
///
/// Objects come in the storage version of the resource. Namespace is empty at cluster scope.
pub trait Reader: Send + Sync {
    /// One object.
    fn get(&self, resource: GroupResource<'_>, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// All objects, or those of one namespace.
    fn list(&self, resource: GroupResource<'_>, namespace: Option<&str>) -> Vec<Arc<Value>>;
    /// Changes whenever any object of the resource changes: compare it before rebuilding something derived.
    fn version(&self, resource: GroupResource<'_>) -> u64;
    /// True once the resource has been read from etcd. Asking starts its cache.
    fn synced(&self, resource: GroupResource<'_>) -> bool;
    /// The resource as a stream of changes, for what is derived from all of its objects. Asking starts its cache.
    fn source(&self, resource: GroupResource<'_>) -> Option<Arc<dyn Source>>;
    /// Waits until the resource has been read and its version is another one than `since`.
    fn changed<'a>(&'a self, resource: GroupResource<'a>, since: u64) -> BoxFuture<'a, ()>;
    /// Storage statistics of a resource; `None` for one that is not stored here.
    fn stored(&self, resource: GroupResource<'_>) -> Option<Stored>;
}

/// Storage statistics of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Objects.
    pub objects: u64,
    /// Bytes of one, on average; 0 when unknown.
    pub size: u64,
}

/// One object's current state; none when it is gone.
pub struct Changed {
    /// Namespace, empty at cluster scope.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The object.
    pub object: Option<Arc<Value>>,
}

/// Changes of a resource since a version.
pub struct Changes {
    /// The version to ask with next.
    pub version: u64,
    /// `objects` are all there are: others are gone.
    pub complete: bool,
    /// In the order they changed.
    pub objects: Vec<Changed>,
}

/// A resource's cache, for followers. Cheap to ask; never waits.
pub trait Source: Send + Sync {
    /// Differs after every change.
    fn version(&self) -> u64;
    /// True once the resource has been read from etcd.
    fn synced(&self) -> bool;
    /// The changes since a version, or everything when that is unknown or 0.
    fn changes(&self, since: u64) -> Changes;
}

/// Preconditions and mode of an in-process delete.
#[derive(Clone, Debug, Default)]
pub struct DeleteArgs {
    /// Only this uid.
    pub uid: Option<String>,
    /// Only this revision.
    pub resource_version: Option<String>,
    /// Seconds of grace, the kind's own when absent.
    pub grace_period_seconds: Option<i64>,
    /// `Foreground`, `Background` or `Orphan`.
    pub propagation_policy: Option<String>,
}

/// The object pipeline, as used by the server itself. Authentication and authorisation are skipped, everything else
/// (defaulting, admission as `user`, strategy, validation) is what a remote caller would get.
#[async_trait]
pub trait Pipeline: Send + Sync {
    /// A quorum read.
    async fn get(&self, resource: &Row, namespace: &str, name: &str) -> Result<Value, Status>;
    /// A consistent list.
    async fn list(&self, resource: &Row, namespace: Option<&str>) -> Result<Vec<Value>, Status>;
    /// Creates and returns the stored object.
    async fn create(&self, user: &UserInfo, resource: &Row, namespace: &str, object: Value) -> Result<Value, Status>;
    /// Replaces; `subresource` may be empty or `status`.
    async fn update(&self, user: &UserInfo, resource: &Row, subresource: &str, object: Value) -> Result<Value, Status>;
    /// Server-side apply of what a field manager says of an object, whoever else says something of it.
    async fn apply(
        &self,
        user: &UserInfo,
        resource: &Row,
        subresource: &str,
        manager: &str,
        object: Value,
    ) -> Result<Value, Status>;
    /// Deletes.
    async fn delete(
        &self,
        user: &UserInfo,
        resource: &Row,
        namespace: &str,
        name: &str,
        args: DeleteArgs,
    ) -> Result<(), Status>;
}

/// Cloneable handle on the [`Pipeline`], addressed by group and plural.
#[derive(Clone)]
pub struct Api {
    pipeline: Arc<dyn Pipeline>,
    rows: Rows,
}

impl Api {
    /// Wraps a pipeline over the rows it serves; tests bring their own.
    pub fn new(pipeline: Arc<dyn Pipeline>, rows: Rows) -> Self {
        Self { pipeline, rows }
    }

    fn resource(&self, resource: GroupResource<'_>) -> Result<Row, Status> {
        self.rows.storage(resource).ok_or_else(Status::generic_not_found)
    }

    /// Resources that are served.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// A quorum read.
    pub async fn get(&self, resource: GroupResource<'_>, namespace: &str, name: &str) -> Result<Value, Status> {
        self.pipeline.get(&self.resource(resource)?, namespace, name).await
    }

    /// A consistent list of all namespaces or one.
    pub async fn list(&self, resource: GroupResource<'_>, namespace: Option<&str>) -> Result<Vec<Value>, Status> {
        self.pipeline.list(&self.resource(resource)?, namespace).await
    }

    /// Creates `object` as `user`.
    pub async fn create(
        &self,
        user: &UserInfo,
        resource: GroupResource<'_>,
        namespace: &str,
        object: Value,
    ) -> Result<Value, Status> {
        self.pipeline.create(user, &self.resource(resource)?, namespace, object).await
    }

    /// Replaces an object; the `resourceVersion` inside it is the precondition.
    pub async fn update(
        &self,
        user: &UserInfo,
        resource: GroupResource<'_>,
        subresource: &str,
        object: Value,
    ) -> Result<Value, Status> {
        self.pipeline.update(user, &self.resource(resource)?, subresource, object).await
    }

    /// Applies what a field manager says of an object, by force.
    pub async fn apply(
        &self,
        user: &UserInfo,
        (resource, subresource): (GroupResource<'_>, &str),
        manager: &str,
        object: Value,
    ) -> Result<Value, Status> {
        self.pipeline.apply(user, &self.resource(resource)?, subresource, manager, object).await
    }

    /// Deletes an object.
    pub async fn delete(
        &self,
        user: &UserInfo,
        resource: GroupResource<'_>,
        namespace: &str,
        name: &str,
        args: DeleteArgs,
    ) -> Result<(), Status> {
        self.pipeline.delete(user, &self.resource(resource)?, namespace, name, args).await
    }
}

/// Shared state of the process that every component may hold.
#[derive(Clone)]
pub struct ServerContext {
    /// The parsed command line.
    pub flags: Arc<FlagSet>,
    /// Cached reads.
    pub reader: Arc<dyn Reader>,
    /// In-process writes.
    pub api: Api,
    /// Resources that are served now.
    pub rows: Rows,
    /// Named background work, ended at shutdown.
    pub tasks: TaskGroup,
    /// Says when the process is going down.
    pub shutdown: Shutdown,
    /// Says when the last request was answered, which is later: until then connections to others are needed.
    pub answered: Shutdown,
    /// The address other parts of the cluster reach this server at.
    pub advertise_address: std::net::IpAddr,
    /// The secure port.
    pub secure_port: u16,
    /// The way to other servers.
    pub egress: Egress,
}

/// Issues service-account tokens for the `serviceaccounts/token` subresource; implemented by `tokens`.
#[async_trait]
pub trait TokenIssuer: Send + Sync {
    /// Fills in, in a defaulted `TokenRequest`, what it does not say about `account`, and checks what it says.
    fn complete(&self, account: &Value, request: &mut Value) -> Result<(), Status>;

    /// Answers such a request once it was admitted.
    async fn issue(&self, account: &Value, request: Value) -> Result<IssuedToken, Status>;
}

/// A token.
#[derive(Debug)]
pub struct IssuedToken {
    /// The request with `status` filled in.
    pub object: Value,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// Credential ID of the token.
    pub credential: String,
}

/// Handles the review resources and other kinds that are computed, not stored (`subjectaccessreviews`,
/// `tokenreviews`, `selfsubjectreviews`, …); implemented by `access`.
#[async_trait]
pub trait VirtualResources: Send + Sync {
    /// Answers a create of `object` by `user`; `None` when the resource is not a computed one.
    async fn create(
        &self,
        user: &UserInfo,
        resource: &Resource,
        namespace: &str,
        object: Value,
    ) -> Option<Result<Value, Status>>;
}

/// Refusal by the authorizers.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NotPermitted {
    /// Reason that they give, which may be empty.
    pub reason: String,
}

/// Asks the authorisers whether something is allowed; implemented by `access`.
#[async_trait]
pub trait Permits: Send + Sync {
    /// Asks the authorizers.
    ///
    /// # Errors
    /// [`NotPermitted`].
    async fn ask(&self, attributes: &shared::authz::Attributes) -> Result<(), NotPermitted>;
}
