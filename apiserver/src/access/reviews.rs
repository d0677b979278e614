//! The kinds that are answers, not objects: token reviews, access reviews and "who am I". Answers for upstream's
//! `pkg/registry/{authentication`,authorization}.

use std::sync::Arc;

use async_trait::async_trait;
use proto::resources::Resource;
use serde_json::{Map, Value, json};
use shared::authn::UserInfo;
use shared::authz::{Attributes, Decision};
use shared::status::{Status, field};

use super::reviews_sar::{self, Spec};
use crate::api::VirtualResources;
use crate::authn::Tokens;
use crate::authz::Authorization;
use crate::authz::rbac::Rule;
use crate::machinery::GroupResource;
use crate::machinery::meta;
use crate::machinery::tree;
use crate::registry::authentication::self_subject_review::SELF_SUBJECT_REVIEWS;
use crate::registry::authentication::token_review::TOKEN_REVIEWS;
use crate::registry::authorization::local_subject_access_review::LOCAL_SUBJECT_ACCESS_REVIEWS;
use crate::registry::authorization::self_subject_access_review::SELF_SUBJECT_ACCESS_REVIEWS;
use crate::registry::authorization::self_subject_rules_review::SELF_SUBJECT_RULES_REVIEWS;
use crate::registry::authorization::subject_access_review::SUBJECT_ACCESS_REVIEWS;

const AUTHORIZATION: &str = SUBJECT_ACCESS_REVIEWS.group;

/// Answers all of them.
pub struct Reviews {
    /// Authorizers.
    pub authorization: Arc<Authorization>,
    /// Service-account tokens.
    pub tokens: Tokens,
}

#[async_trait]
impl VirtualResources for Reviews {
    async fn create(
        &self,
        user: &UserInfo,
        resource: &Resource,
        namespace: &str,
        object: Value,
    ) -> Option<Result<Value, Status>> {
        Some(match GroupResource::of(resource) {
            TOKEN_REVIEWS => self.token(object).await,
            SELF_SUBJECT_REVIEWS => Ok(self_review(user, object)),
            SUBJECT_ACCESS_REVIEWS => self.access(object, None).await,
            LOCAL_SUBJECT_ACCESS_REVIEWS => self.access(object, Some(namespace)).await,
            SELF_SUBJECT_ACCESS_REVIEWS => self.self_access(user, object).await,
            SELF_SUBJECT_RULES_REVIEWS => self.rules(user, object),
            _ => return None,
        })
    }
}

/// The tree of a user as reviews show it.
fn user_tree(user: &UserInfo) -> Value {
    serde_json::to_value(user).unwrap_or_default()
}

fn self_review(user: &UserInfo, mut object: Value) -> Value {
    *tree::field(&mut object, &["metadata", "creationTimestamp"]) = json!(meta::now());
    *tree::field(&mut object, &["status"]) = json!({"userInfo": user_tree(user)});
    object
}

/// The texts of field errors as a refusal without a kind, as upstream words it for these resources.
fn invalid(errors: Vec<field::Error>) -> Status {
    Status::invalid(AUTHORIZATION, "", "", errors)
}

impl Reviews {
    async fn token(&self, mut review: Value) -> Result<Value, Status> {
        let token = tree::text(&review, "/spec/token").to_owned();
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let mut wanted = tree::strings(&review, "/spec/audiences");
        let asked = !wanted.is_empty();
        if !asked {
            wanted = self.tokens.audiences().to_vec();
        }
        let status = match self.tokens.identify(&token, &wanted).await {
            Err(error) => json!({"user": {}, "error": error.0}),
            Ok(identity) => {
                let mut user = identity.user;
                // What the request's chain would have added.
                if !user.in_group(shared::authn::ALL_AUTHENTICATED) {
                    user.groups.push(shared::authn::ALL_AUTHENTICATED.to_owned());
                }
                let mut status = Map::new();
                status.insert("authenticated".into(), json!(true));
                status.insert("user".into(), user_tree(&user));
                if !identity.audiences.is_empty() {
                    status.insert("audiences".into(), json!(identity.audiences));
                } else if asked {
                    // A token of a sort that knows no audiences is good for this server only.
                    let own: Vec<&String> = wanted.iter().filter(|a| self.tokens.audiences().contains(a)).collect();
                    if own.is_empty() {
                        status = Map::new();
                        status.insert("user".into(), json!({}));
                        let text = format!(
                            "token audiences {:?} is invalid for the target audiences {wanted:?}",
                            self.tokens.audiences()
                        );
                        status.insert("error".into(), json!(text));
                    } else {
                        status.insert("audiences".into(), json!(own));
                    }
                }
                Value::Object(status)
            }
        };
        *tree::field(&mut review, &["status"]) = status;
        Ok(review)
    }

    async fn access(&self, mut review: Value, namespace: Option<&str>) -> Result<Value, Status> {
        let spec = Spec::read(&review);
        let mut errors = spec.validate(true);
        errors.extend(reviews_sar::validate_metadata(&review, if namespace.is_some() { "namespace" } else { "" }));
        if let Some(namespace) = namespace {
            errors.extend(reviews_sar::validate_local(&review, namespace));
        }
        if !errors.is_empty() {
            return Err(invalid(errors));
        }
        let (question, ignored) = (spec.attributes(spec.user()), spec.ignored());
        self.answer(&mut review, &question, ignored).await;
        Ok(review)
    }

    async fn self_access(&self, user: &UserInfo, mut review: Value) -> Result<Value, Status> {
        let spec = Spec::read(&review);
        let mut errors = spec.validate(false);
        errors.extend(reviews_sar::validate_metadata(&review, ""));
        if !errors.is_empty() {
            return Err(invalid(errors));
        }
        let (question, ignored) = (spec.attributes(user.clone()), spec.ignored());
        self.answer(&mut review, &question, ignored).await;
        Ok(review)
    }

    async fn answer(&self, review: &mut Value, question: &Attributes, ignored: Vec<String>) {
        let verdict = self.authorization.verdict(question).await;
        let mut status = Map::new();
        status.insert("allowed".into(), json!(verdict.is_allowed()));
        if verdict.decision == Decision::Deny {
            status.insert("denied".into(), json!(true));
        }
        if !verdict.reason.is_empty() {
            status.insert("reason".into(), json!(verdict.reason));
        }
        let errors: Vec<String> = verdict.error.into_iter().chain(ignored).collect();
        if !errors.is_empty() {
            status.insert("evaluationError".into(), json!(errors.join("; ")));
        }
        *tree::field(review, &["status"]) = Value::Object(status);
    }

    fn rules(&self, user: &UserInfo, mut review: Value) -> Result<Value, Status> {
        let namespace = tree::text(&review, "/spec/namespace").to_owned();
        if namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        let (rules, gaps) = self.authorization.rules_for(user, &namespace);
        let (mut on_resources, mut on_urls) = (Vec::new(), Vec::new());
        for rule in &rules {
            if rule.non_resource_urls.is_empty() {
                on_resources.push(resource_rule(rule));
            } else {
                on_urls.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
            }
        }
        let mut status =
            json!({"resourceRules": on_resources, "nonResourceRules": on_urls, "incomplete": !gaps.is_empty()});
        if !gaps.is_empty() {
            status["evaluationError"] = json!(field::aggregate(&gaps));
        }
        *tree::field(&mut review, &["status"]) = status;
        Ok(review)
    }
}

fn resource_rule(rule: &Rule) -> Value {
    let mut out = json!({"verbs": rule.verbs});
    for (name, list) in
        [("apiGroups", &rule.api_groups), ("resources", &rule.resources), ("resourceNames", &rule.resource_names)]
    {
        if !list.is_empty() {
            out[name] = json!(list);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::Fixed;
    use crate::authz::{Mode, rbac};

    fn reviews() -> Reviews {
        let reader = Arc::new(Fixed::default());
        reader.put(
            rbac::GROUP,
            "clusterroles",
            json!({"metadata": {"name": "r"}, "rules": [
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}, {"verbs": ["get"], "nonResourceURLs": ["/version"]}]}),
        );
        reader.put(
            rbac::GROUP,
            "clusterrolebindings",
            json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "User", "name": "eve"}]}),
        );
        let authorization = Arc::new(Authorization::new(&[Mode::Node, Mode::Rbac], reader, Vec::new()));
        Reviews { authorization, tokens: Tokens::new(Vec::new(), vec!["api".into()]) }
    }

    async fn post(plural: &str, namespace: &str, object: Value) -> Result<Value, Status> {
        let group =
            if matches!(plural, "tokenreviews" | "selfsubjectreviews") { TOKEN_REVIEWS.group } else { AUTHORIZATION };
        let row = proto::resources::find(group, "v1", plural).expect("a row");
        let user = UserInfo { name: "eve".into(), ..UserInfo::default() };
        reviews().create(&user, row, namespace, object).await.expect("computed")
    }

    #[tokio::test]
    async fn refusals() {
        let table = [
            (
                "subjectaccessreviews",
                json!({"spec": {}}),
                422,
                ".authorization.k8s.io \"\" is invalid: [spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified, spec.user: Invalid value: \"\": at least one of user or group must be specified]",
            ),
            (
                "selfsubjectaccessreviews",
                json!({"spec": {"nonResourceAttributes": {}, "resourceAttributes": {}}}),
                422,
                ".authorization.k8s.io \"\" is invalid: spec.nonResourceAttributes: Invalid value: {\"Path\":\"\",\"Verb\":\"\"}: cannot be specified in combination with resourceAttributes",
            ),
            (
                "localsubjectaccessreviews",
                json!({"metadata": {"namespace": "e"}, "spec": {"user": "u", "resourceAttributes": {"namespace": "z"}}}),
                422,
                ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes.namespace: Invalid value: \"z\": must match metadata.namespace",
            ),
            (
                "selfsubjectaccessreviews",
                json!({"spec": {"resourceAttributes": {"fieldSelector": {}, "labelSelector": {"rawSelector": "a", "requirements": [{"key": "a", "operator": "In"}]}}}}),
                422,
                ".authorization.k8s.io \"\" is invalid: [spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required, spec.resourceAttributes.labelSelector.rawSelector: Invalid value: \"a\": may not specified at the same time as requirements, spec.resourceAttributes.labelSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn']",
            ),
            (
                "subjectaccessreviews",
                json!({"metadata": {"name": "n", "uid": "u", "labels": {}},
                    "spec": {"resourceAttributes": {"fieldSelector": {}}}}),
                422,
                ".authorization.k8s.io \"\" is invalid: [spec.user: Invalid value: \"\": at least one of user or group must be specified, spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required, metadata: Invalid value: {\"name\":\"n\"}: must be empty]",
            ),
            (
                "selfsubjectaccessreviews",
                json!({"metadata": {"generateName": "n"}, "spec": {"nonResourceAttributes": {}}}),
                422,
                ".authorization.k8s.io \"\" is invalid: metadata: Invalid value: {\"generateName\":\"n\"}: must be empty",
            ),
            (
                "localsubjectaccessreviews",
                json!({"metadata": {"namespace": "e", "labels": {"a": "b"}},
                    "spec": {"user": "u", "nonResourceAttributes": {"path": "/", "verb": "get"}}}),
                422,
                ".authorization.k8s.io \"\" is invalid: [metadata: Invalid value: {\"labels\":{\"a\":\"b\"},\"namespace\":\"e\"}: must be empty except for namespace, spec.nonResourceAttributes: Invalid value: {\"Path\":\"/\",\"Verb\":\"get\"}: disallowed on this kind of request]",
            ),
            ("tokenreviews", json!({"spec": {}}), 400, "token is required for TokenReview in authentication"),
            ("selfsubjectrulesreviews", json!({"spec": {}}), 400, "no namespace on request"),
        ];
        for (plural, object, code, message) in table {
            let status = post(plural, "e", object).await.expect_err("refused");
            assert_eq!((status.code, status.message.as_str()), (code, message), "{plural}");
        }
    }

    #[tokio::test]
    async fn answers() {
        let ask = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "e"}}});
        let answer = post("selfsubjectaccessreviews", "", ask).await.expect("answers");
        assert_eq!(
            answer["status"],
            json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"r\" to User \"eve\""})
        );
        let ask = json!({"spec": {"user": "bob", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
        assert_eq!(post("subjectaccessreviews", "", ask).await.expect("answers")["status"], json!({"allowed": false}));
        let ask = json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods",
            "fieldSelector": {"rawSelector": "nonsense"}, "labelSelector": {"requirements": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Newer"}]}}}});
        assert_eq!(
            post("selfsubjectaccessreviews", "", ask).await.expect("answers")["status"],
            json!({"allowed": false, "evaluationError": "spec.resourceAttributes.fieldSelector ignored due to parse error; spec.resourceAttributes.labelSelector partially ignored due to parse error"})
        );
        let rules = post("selfsubjectrulesreviews", "", json!({"spec": {"namespace": "e"}})).await.expect("answers");
        assert_eq!(
            rules["status"],
            json!({"resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}],
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/version"]}], "incomplete": false})
        );
        let me = post("selfsubjectreviews", "", json!({})).await.expect("answers");
        assert_eq!(me["status"]["userInfo"], json!({"username": "eve"}));
        let token = post("tokenreviews", "", json!({"spec": {"token": "x"}})).await.expect("answers");
        assert_eq!(token["status"], json!({"user": {}, "error": "invalid bearer token"}));
    }
}
