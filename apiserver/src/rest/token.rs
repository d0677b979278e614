//! Tokens of a service account.
//!
//! Answers for `TokenREST` of upstream's `pkg/registry/core/serviceaccount/storage`.

use std::sync::Arc;

use proto::resources::Row;
use shared::status::{Status, field};

use crate::admission::Operation;
use crate::machinery::meta;
use crate::machinery::query::{OptionsKind, WriteOptions};
use crate::verbs::engine::Engine;
use crate::verbs::{Reply, VerbRequest, reply_object, target, write};

/// POST of `token` below a service account.
pub(super) async fn request(engine: &Arc<Engine>, r: &VerbRequest, row: &Row) -> Result<Reply, Status> {
    let options = WriteOptions::read(&r.query, OptionsKind::Create, &r.user_agent)?;
    let mut object = write::body_of_kind(r, ("authentication.k8s.io", "v1", "TokenRequest"), &options)?.object;
    write::check_namespace(&mut object, &r.info.namespace)?;
    let mut t = target(r, row, "token", &options, "CreateOptions");
    engine.admit(&mut t, Operation::Create, Some(&mut object), None).await?;
    let said = meta::text(&object, "name");
    if !said.is_empty() && said != r.info.name {
        let path = field::Path::of(&["metadata", "name"]);
        let error = field::Error::invalid(path, said, "must match the service account name if specified");
        return Err(Status::invalid("authentication.k8s.io", "TokenRequest", &r.info.name, [error]));
    }
    let Some((account, _)) = engine.read(row, &r.info.namespace, &r.info.name).await? else {
        return Err(Status::not_found(&row.group, &row.plural, &r.info.name));
    };
    engine.tokens.complete(&account, &mut object)?;
    engine.validate_admission(&mut t, Operation::Create, Some(&mut object), None).await?;
    let issued = engine.tokens.issue(&account, object).await?;
    let credential = ("authentication.kubernetes.io/issued-credential-id".to_owned(), issued.credential);
    r.recorder.annotate([credential].into());
    Ok(reply_object(engine, r, row, 201, &issued.object)?.warn(issued.warnings))
}
