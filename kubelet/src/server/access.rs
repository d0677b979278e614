//! Access checks: authentication by client certificate and token, authorisation as access to subresources of the node.
//! Answers for upstream's `pkg/kubelet/server/auth.go` (`GetRequestAttributes`).

use super::answer::{Answer, error, text};
use http::{Method, Request, StatusCode};
use rustls::pki_types::CertificateDer;
use shared::authn::{Authenticator, Credentials};
use shared::authz::{Attributes, Authorizer, Decision};
use std::sync::Arc;

/// Both chains.
pub struct Access {
    /// Finds out who asks.
    pub authenticator: Arc<dyn Authenticator>,
    /// Decides.
    pub authorizer: Arc<dyn Authorizer>,
    /// The node whose subresources are asked for.
    pub node_name: String,
}

/// The subresources of the node that a path stands for: one of them is enough.
pub fn subresources(path: &str) -> Vec<&'static str> {
    let below = |root: &str| path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    for (root, name) in [
        ("/stats", "stats"),
        ("/metrics", "metrics"),
        ("/logs", "log"),
        ("/checkpoint", "checkpoint"),
        ("/statusz", "statusz"),
        ("/flagz", "flagz"),
    ] {
        if below(root) {
            return vec![name];
        }
    }
    for (root, name) in [("/healthz", "healthz"), ("/configz", "configz"), ("/pods", "pods"), ("/runningpods", "pods")]
    {
        if below(root) {
            return vec![name, "proxy"];
        }
    }
    vec!["proxy"]
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

impl Access {
    /// Lets a request pass, or says how it is refused.
    ///
    /// # Errors
    /// The refusal.
    pub async fn check<B>(&self, request: &Request<B>, chain: &[CertificateDer<'static>]) -> Result<(), Answer> {
        let (path, verb) = (request.uri().path().to_owned(), verb(request.method()));
        let identity = {
            let credentials =
                Credentials { headers: request.headers(), certificates: chain, path: request.uri().path() };
            self.authenticator.authenticate(&credentials).await
        };
        let identity = match identity {
            Ok(Some(identity)) => identity,
            Ok(None) => return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized")),
            Err(problem) => {
                tracing::error!(error = %problem, "Unable to authenticate the request due to an error");
                return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized"));
            }
        };
        let names = subresources(&path);
        let mut failure = None;
        for name in &names {
            let attributes = Attributes {
                user: identity.user.clone(),
                verb: verb.to_owned(),
                api_version: "v1".to_owned(),
                resource: "nodes".to_owned(),
                subresource: (*name).to_owned(),
                name: self.node_name.clone(),
                resource_request: true,
                path: path.clone(),
                ..Attributes::default()
            };
            match self.authorizer.authorize(&attributes).await {
                Ok((Decision::Allow, _)) => return Ok(()),
                Ok(_) => {}
                Err(problem) => failure = Some(problem.to_string()),
            }
        }
        let user = &identity.user.name;
        let asked = format!("(user={user}, verb={verb}, resource=nodes, subresource(s)=[{}])", names.join(" "));
        if let Some(problem) = failure {
            tracing::error!(user, verb, error = problem, "Authorization error");
            return Err(error(StatusCode::INTERNAL_SERVER_ERROR, &format!("Authorization error {asked}")));
        }
        Err(error(StatusCode::FORBIDDEN, &format!("Forbidden {asked}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::authn::OrAnonymous;
    use shared::authz::AlwaysDeny;

    #[test]
    fn paths_stand_for_subresources() {
        for (path, expected) in [
            ("/pods", vec!["pods", "proxy"]),
            ("/metrics/cadvisor", vec!["metrics"]),
            ("/metricsx", vec!["proxy"]),
            ("/logs/", vec!["log"]),
            ("/stats/summary", vec!["stats"]),
            ("/exec/a/b/c", vec!["proxy"]),
            ("/healthz", vec!["healthz", "proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn strangers_are_refused() {
        let nobody = || shared::authn::Union::new(Vec::new());
        let request = Request::get("/pods").body(()).expect("request");
        let access =
            Access { authenticator: Arc::new(nobody()), authorizer: Arc::new(AlwaysDeny), node_name: "n".into() };
        assert_eq!(access.check(&request, &[]).await.expect_err("refused").status(), StatusCode::UNAUTHORIZED);
        let access = Access { authenticator: Arc::new(OrAnonymous { chain: nobody(), paths: Vec::new() }), ..access };
        assert_eq!(access.check(&request, &[]).await.expect_err("refused").status(), StatusCode::FORBIDDEN);
    }
}
