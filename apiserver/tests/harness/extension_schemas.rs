//! The OpenAPI documents of an [`Extension`](super::Extension).

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Response;
use serde_json::{Value, json};

const KIND: &str = "com.example.wardle.v1.Flunder";

fn schema() -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "string"}},
        "x-kubernetes-group-version-kind": [{"group": "wardle.example.com", "version": "v1", "kind": "Flunder"}]})
}

pub fn answer(path: &str) -> Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>> {
    let place = "/apis/wardle.example.com/v1/flunders";
    let document = match path {
        "/openapi/v2" => json!({"swagger": "2.0", "info": {"title": "w", "version": "v1"},
            "paths": {place: {"get": {"produces": ["application/json"], "responses": {"200": {"description": "OK", "schema": {"$ref": format!("#/definitions/{KIND}")}}}}},
                "/apis/other.example.com/v1/things": {}},
            "definitions": {KIND: schema(), "io.k8s.api.core.v1.Pod": {"type": "object", "description": "not the Pod you know"}}}),
        "/openapi/v3" => json!({"paths": {"apis/wardle.example.com/v1":
            {"serverRelativeURL": "/openapi/v3/apis/wardle.example.com/v1?hash=ABC"}, "version": {"serverRelativeURL": "/openapi/v3/version?hash=1"}}}),
        _ => json!({"openapi": "3.0.0", "paths": {place: {}}, "components": {"schemas": {KIND: schema()}}}),
    };
    let body = http_body_util::Full::new(Bytes::from(document.to_string())).boxed_unsync();
    Response::builder()
        .header("content-type", "application/json")
        .header("etag", "\"ABC\"")
        .body(body)
        .expect("a response")
}
