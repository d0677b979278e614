//! The token that a list goes on with, in upstream's form. Answers for upstream's `pkg/storage/continue.go`
//! (`EncodeContinue`, `DecodeContinue`).

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine as _};
use proto::{Value, json};
use shared::status::Status;

/// The token that continues after `last`, a key below the resource's prefix, in a list that etcd has answered.
pub(super) fn token(revision: i64, scope: &str, last: &str) -> String {
    written(revision, format!("{}\0", below(scope, last)))
}

/// Continue token of a list that the watch cache answered: upstream's names keys from the slash on.
pub(super) fn cached_token(revision: i64, scope: &str, last: &str) -> String {
    written(revision, format!("/{}\0", below(scope, last)))
}

fn below<'a>(scope: &str, last: &'a str) -> &'a str {
    last.strip_prefix(scope).unwrap_or(last)
}

fn written(revision: i64, start: String) -> String {
    let text = format!(r#"{{"v":"meta.k8s.io/v1","rv":{revision},"start":{}}}"#, Value::from(start));
    URL_SAFE_NO_PAD.encode(text)
}

/// Revision and key that a token names.
pub(super) fn read_token(token: &str, scope: &str) -> Result<(i64, String), Status> {
    let bad = |why: String| Status::bad_request(&format!("invalid continue token: continue key is not valid: {why}"));
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|e| {
        let at = match e {
            DecodeError::InvalidByte(at, _) => at,
            _ => token.len().saturating_sub(1),
        };
        bad(format!("illegal base64 data at input byte {at}"))
    })?;
    let v = json::decode_any(&bytes).map_err(|e| bad(e.to_string()))?;
    let version = v["v"].as_str().unwrap_or_default();
    if version != "meta.k8s.io/v1" {
        return Err(bad(format!("server does not recognize this encoded version {version}")));
    }
    let revision = v["rv"].as_i64().unwrap_or(0);
    if revision == 0 {
        return Err(bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned()));
    }
    let start = v["start"].as_str().unwrap_or("");
    if start.is_empty() {
        return Err(bad("encoded start key empty (version meta.k8s.io/v1)".to_owned()));
    }
    let below = start.strip_prefix('/').unwrap_or(start);
    if below.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(bad(start.to_owned()));
    }
    Ok((revision, format!("{scope}{below}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens() {
        let t = token(5, "e/", "e/a");
        assert_eq!(t, "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0");
        assert_eq!(
            URL_SAFE_NO_PAD.decode(cached_token(5, "e/", "e/a")).expect("base64"),
            br#"{"v":"meta.k8s.io/v1","rv":5,"start":"/a\u0000"}"#
        );
        for t in [t, cached_token(5, "e/", "e/a")] {
            assert_eq!(read_token(&t, "e/").map_err(|e| e.message), Ok((5, "e/a\0".to_owned())));
        }
        let made = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let wrong = "invalid continue token: continue key is not valid: ";
        for (text, want) in [
            (r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/a/b"}"#, Ok((5, "e/a/b".to_owned()))),
            (r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a/../b"}"#, Err("a/../b")),
            (r#"{"v":"meta.k8s.io/v1","rv":5,"start":"//a"}"#, Err("//a")),
            (r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a/"}"#, Err("a/")),
            (r#"{"v":"meta.k8s.io/v1","rv":5}"#, Err("encoded start key empty (version meta.k8s.io/v1)")),
            (
                r#"{"v":"meta.k8s.io/v1","start":"a"}"#,
                Err("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"),
            ),
            (r#"{"v":"v2","rv":5,"start":"a"}"#, Err("server does not recognize this encoded version v2")),
        ] {
            let got = read_token(&made(text), "e/").map_err(|e| e.message);
            assert_eq!(got, want.map_err(|why| format!("{wrong}{why}")), "{text}");
        }
        let e = read_token("abc", "").expect_err("garbage");
        assert_eq!(
            e.message,
            "invalid continue token: continue key is not valid: invalid character 'i' looking for beginning of value"
        );
    }
}
