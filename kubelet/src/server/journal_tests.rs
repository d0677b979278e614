//! Queries for logs, with a `journalctl` that says how it was called.

use super::*;
use http_body_util::BodyExt as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

fn parse(text: &str) -> Result<Option<LogQuery>, String> {
    LogQuery::parse(&super::super::query::pairs(text)).map_err(|error| error.to_string())
}

fn node() -> (tempfile::TempDir, NodeLogs) {
    let root = tempfile::tempdir().expect("folder");
    let folder = root.path().join("log");
    fs::create_dir_all(folder.join("deep")).expect("folder");
    for (name, text) in [("plain", "one"), ("dotted.log", "two"), ("deep/deep.log", "three")] {
        fs::write(folder.join(name), text).expect("file");
    }
    fs::write(root.path().join("secret"), "hidden").expect("file");
    std::os::unix::fs::symlink("../secret", folder.join("leads-out")).expect("link");
    let journalctl = root.path().join("journalctl");
    let script = "#!/bin/sh\nif [ \"$1\" = --field ]; then echo kubelet.service; echo ssh.service; exit; fi\n\
                  echo \"$@\"; echo problems >&2\n";
    fs::write(&journalctl, script).expect("script");
    fs::set_permissions(&journalctl, fs::Permissions::from_mode(0o755)).expect("mode");
    (root, NodeLogs { journalctl, folder })
}

async fn ask(logs: &NodeLogs, query: &str) -> (u16, String) {
    let query = parse(query).expect("parses").expect("a query");
    match logs.answer(query, "/", &HeaderMap::new()) {
        LogAnswer::File(name) => (0, name),
        LogAnswer::Answer(answer) => {
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.expect("a body").to_bytes();
            (status, String::from_utf8_lossy(&body).into_owned())
        }
    }
}

#[test]
fn parameters_become_queries() {
    assert_eq!(parse("").expect("none"), None);
    assert_eq!(parse("other=1").expect("none"), None);
    let query = parse("query=kubelet&query=/a.log&tailLines=5&boot=-1&pattern=x").expect("parses").expect("a query");
    assert_eq!((query.services, query.files), (vec!["kubelet".to_owned()], vec!["/a.log".to_owned()]));
    assert_eq!((query.options.tail_lines, query.options.boot), (Some(5), Some(-1)));
    for (text, error) in [
        ("query=+", "query: Invalid value: [\" \"]: query cannot be empty"),
        ("query=a&sinceTime=yesterday", "sinceTime: Invalid value: \"yesterday\": invalid time format"),
        ("query=a&boot=x", "boot: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax"),
        ("query=a&tailLines=1.5", "tailLines: Invalid value: \"1.5\": strconv.Atoi: parsing \"1.5\": invalid syntax"),
    ] {
        assert_eq!(parse(text).expect_err(text), error);
    }
}

#[tokio::test]
async fn queries_out_of_bounds_are_not_acceptable() {
    let (_root, logs) = node();
    let long = format!("query={}", "a".repeat(257));
    for (query, text) in [
        ("boot=0", "query: Required value: cannot be empty with options"),
        ("query=a&query=/plain", "cannot specify a file and service"),
        ("query=/plain&query=/x", "cannot specify more than one file"),
        ("query=/plain&boot=0", "cannot specify file with options"),
        ("query=/none", "query: Invalid value: [\"/none\"]: "),
        ("query=/leads-out", "query: Invalid value: [\"/leads-out\"]: "),
        ("query=/deep", "query: Invalid value: [\"/deep\"]: "),
        ("query=a;rm", "input contains unsupported characters"),
        (long.as_str(), "length must be less than 100"),
        ("query=a&query=b&query=c&query=d&query=e", "query: Too many: 5: must have at most 4 items"),
        ("query=a&boot=1", "boot: Invalid value: 1: must be less than 1"),
        ("query=a&tailLines=100001", "tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive"),
        ("query=a&pattern=[", "pattern: Invalid value: \"[\": error parsing regexp: missing closing ]"),
        (
            "query=a&sinceTime=2024-01-02T00:00:00Z&untilTime=2024-01-01T00:00:00Z",
            "untilTime: Invalid value: \"2024-01-01 00:00:00\": must be after `sinceTime`",
        ),
    ] {
        let (status, body) = ask(&logs, query).await;
        assert_eq!(status, 406, "{query}");
        assert!(body.contains(text), "{query}: {body}");
    }
    let query = parse("query=kubelet").expect("parses").expect("a query");
    let LogAnswer::Answer(answer) = logs.answer(query, "/plain", &HeaderMap::new()) else { panic!("a file") };
    assert_eq!(answer.status().as_u16(), 406, "a path");
}

#[tokio::test]
async fn services_are_looked_up_in_the_journal() {
    let (_root, logs) = node();
    let query = "query=kubelet&query=ssh&sinceTime=2024-01-02T03:04:05%2B02:00&untilTime=2024-11-12T13:14:15Z\
                 &tailLines=7&pattern=a.b&boot=-2";
    let (status, body) = ask(&logs, query).await;
    let expected = "--utc --no-pager --output=short-precise --since=2024-1-2 03:4:5 --until=2024-11-12 13:14:15 \
                    --pager-end --lines=7 --unit=kubelet --unit=ssh --grep=a.b --boot -2\nproblems\n";
    assert_eq!((status, body.as_str()), (200, expected));
}

#[tokio::test]
async fn other_services_have_files() {
    let (root, logs) = node();
    for (query, expected) in [
        ("query=plain", "one"),
        ("query=dotted", "two"),
        ("query=deep", "three"),
        ("query=none", "\nlog not found for none\n"),
        ("query=leads-out", "\nlog not found for leads-out\n"),
        (
            "query=plain&tailLines=1",
            "\noptions present and query resolved to log files for [plain]\ntry without specifying options\n",
        ),
    ] {
        assert_eq!(ask(&logs, query).await, (200, expected.to_owned()), "{query}");
    }
    assert_eq!(ask(&logs, "query=\\plain").await, (0, "/plain".to_owned()));
    let without = NodeLogs { journalctl: root.path().join("absent"), ..logs };
    assert_eq!(ask(&without, "query=kubelet").await, (200, "\nlog not found for kubelet\n".to_owned()));
}

#[tokio::test]
async fn answers_are_compressed_on_demand() {
    let (_root, logs) = node();
    let query = parse("query=plain").expect("parses").expect("a query");
    let headers = HeaderMap::from_iter([(http::header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
    let LogAnswer::Answer(answer) = logs.answer(query, "", &headers) else { panic!("a file") };
    assert_eq!(answer.headers()[CONTENT_ENCODING], "gzip");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&body[..]), &mut text).expect("gzip");
    assert_eq!(text, "one");
}
