//! The pipeline as the server's own parts use it.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use proto::Value;
use proto::resources::{Resource, Row};
use shared::authn::UserInfo;
use shared::metrics::{self, CounterVec};
use shared::status::Status;
use tokio::sync::SetOnce;

use super::delete::options_object;
use super::engine::{DeleteOptions, Engine, WriteTarget};
use super::managers::WrittenKind;
use super::select::Selection;
use super::{list, managers, write};
use crate::api::{DeleteArgs, Pipeline};
use crate::machinery::meta;
use crate::machinery::meta::Propagation;
use crate::machinery::query::{FieldValidation, WriteOptions};
use crate::negotiate::decode_patched;
use crate::storage::codec;

/// Field manager of the server's own writes.
pub const MANAGER: &str = "kube-apiserver";

/// [`Pipeline`] over an engine, which may be built later: requests wait until it is.
///
/// Answers for upstream's loopback client, which parts of the server hold before there is a server to reach.
#[derive(Clone, Default)]
pub struct InProcess(Arc<SetOnce<Arc<Engine>>>);

impl InProcess {
    /// The pipeline over an engine that is there.
    pub fn over(engine: Arc<Engine>) -> Self {
        Self(Arc::new(SetOnce::new_with(Some(engine))))
    }

    /// Connects the pipeline to its engine; the first one stays.
    pub fn connect(&self, engine: &Arc<Engine>) {
        drop(self.0.set(engine.clone()));
    }

    async fn engine(&self) -> &Arc<Engine> {
        self.0.wait().await
    }
}

fn canonical(row: &Resource, object: &Value) -> Result<Value, Status> {
    let schema = codec::served_schema(row).map_err(|e| Status::internal(&e.to_string()))?;
    let named = (&*row.api_version(), &*row.kind);
    let mut object =
        decode_patched(named, schema, object.clone(), None, &Value::Null, Vec::new(), FieldValidation::Ignore)?.object;
    write::default(row, &mut object)?;
    Ok(object)
}

fn options() -> WriteOptions {
    WriteOptions { field_manager: MANAGER.to_owned(), ..WriteOptions::default() }
}

/// Counts a request of the server to itself.
fn count(verb: &str, row: &Row, subresource: &str) {
    static ALL: LazyLock<CounterVec> = LazyLock::new(|| {
        let help = "[ALPHA] Counter of requests of the API server to itself, by verb, resource and subresource.";
        metrics::counter("apiserver_selfrequest_total", help, &["verb", "group", "resource", "subresource"])
    });
    ALL.with_label_values(&[verb, &*row.group, &*row.plural, subresource]).inc();
}

#[async_trait]
impl Pipeline for InProcess {
    async fn get(&self, resource: &Row, namespace: &str, name: &str) -> Result<Value, Status> {
        count("GET", resource, "");
        let found = self.engine().await.read(resource, namespace, name).await?;
        found.map(|(v, _)| v).ok_or_else(|| Status::not_found(&resource.group, &resource.plural, name))
    }

    async fn list(&self, resource: &Row, namespace: Option<&str>) -> Result<Vec<Value>, Status> {
        count("LIST", resource, "");
        let found =
            list::collect(self.engine().await, resource, namespace.unwrap_or(""), &Selection::everything()).await?;
        Ok(found.items.iter().filter_map(|e| codec::value(resource, &e.raw).ok()).collect())
    }

    async fn create(&self, user: &UserInfo, resource: &Row, namespace: &str, object: Value) -> Result<Value, Status> {
        count("POST", resource, "");
        let mut object = canonical(resource, &object)?;
        write::check_namespace(&mut object, namespace)?;
        managers::created(resource, "", &mut object, MANAGER);
        let options = options();
        let mut t = WriteTarget::new(resource, (namespace, ""), user, &options);
        let engine = self.engine().await;
        engine.create(&mut t, object).await?.tree(engine, resource)
    }

    async fn update(&self, user: &UserInfo, resource: &Row, subresource: &str, object: Value) -> Result<Value, Status> {
        count("PUT", resource, subresource);
        let object = canonical(resource, &object)?;
        let (namespace, name) = (meta::text(&object, "namespace").to_owned(), meta::text(&object, "name").to_owned());
        let options = options();
        let mut t = WriteTarget { subresource, ..WriteTarget::new(resource, (&namespace, &name), user, &options) };
        let engine = self.engine().await;
        let mut change = |old: Option<&Value>| {
            let mut new = object.clone();
            if let Some(old) = old {
                let kind = WrittenKind { rows: &engine.rows, row: resource, conversions: None };
                managers::updated(kind, subresource, old, &mut new, MANAGER);
            }
            Ok(new)
        };
        engine.update(&mut t, &mut change).await?.0.tree(engine, resource)
    }

    async fn apply(
        &self,
        user: &UserInfo,
        resource: &Row,
        subresource: &str,
        manager: &str,
        object: Value,
    ) -> Result<Value, Status> {
        count("PATCH", resource, subresource);
        let (namespace, name) = (meta::text(&object, "namespace").to_owned(), meta::text(&object, "name").to_owned());
        let options = WriteOptions { field_manager: manager.to_owned(), force: true, ..WriteOptions::default() };
        let target = WriteTarget::new(resource, (&namespace, &name), user, &options);
        let mut t = WriteTarget { subresource, applies: true, ..target };
        let engine = self.engine().await;
        let mut change = |old: Option<&Value>| {
            let kind = WrittenKind { rows: &engine.rows, row: resource, conversions: None };
            let mut new = managers::applied(kind, subresource, old, &object, &options)?;
            write::default_applied(resource, &mut new)?;
            Ok(new)
        };
        engine.update(&mut t, &mut change).await?.0.tree(engine, resource)
    }

    async fn delete(
        &self,
        user: &UserInfo,
        resource: &Row,
        namespace: &str,
        name: &str,
        args: DeleteArgs,
    ) -> Result<(), Status> {
        count("DELETE", resource, "");
        let propagation = match args.propagation_policy.as_deref() {
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(_) => Some(Propagation::Background),
            None => None,
        };
        let delete = DeleteOptions {
            dry_run: false,
            grace_period_seconds: args.grace_period_seconds,
            propagation,
            cascades: false,
            uid: args.uid,
            resource_version: args.resource_version,
            unread: false,
        };
        let options = options();
        let mut t = WriteTarget::new(resource, (namespace, name), user, &options);
        t.options_object = options_object(&delete);
        self.engine().await.delete(&mut t, &delete).await.map(|_| ())
    }
}
