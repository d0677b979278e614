use serde_json::{Value, json};

use super::*;
use crate::schema::kind;

/// Texts, and what upstream's library makes of them: JSON, what strict reading finds in it, or an error.
const UPSTREAMS: &str = include_str!("../../testdata/yaml_read.json");

fn refusal(bytes: &[u8]) -> String {
    to_json(bytes).expect_err("nothing of it").to_string()
}

#[test]
fn documents_are_read_as_upstreams_library_reads_them() {
    let rows: Vec<Value> = serde_json::from_str(UPSTREAMS).expect("rows");
    assert!(rows.len() > 500);
    for row in rows {
        let text = row["text"].as_str().expect("a text");
        match to_json_reporting(text.as_bytes()) {
            Err(error) => assert_eq!(Some(error.to_string().as_str()), row["error"].as_str(), "{text:?}"),
            Ok((json, repeated)) => {
                let value = |json: &[u8]| serde_json::from_slice::<Value>(json).expect("JSON");
                let want = row["json"].as_str().expect("no error");
                assert_eq!(value(&json), value(want.as_bytes()), "{text:?}");
                assert_eq!(complaint(&repeated).as_deref(), row["strict"].as_str(), "{text:?}");
            }
        }
    }
}

#[test]
fn a_schema_does_not_change_what_is_read() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  labels: {1: a, true: b}\nspec:\n  hostNetwork: yes\n  \
                containers:\n  - name: c\n    args: [\"yes\", on]\n  volumes:\n  - name: v\n    configMap: {defaultMode: 0644}\n";
    let pod = kind("", "v1", "Pod").expect("present");
    let refused = decode(pod, text.as_bytes(), Strictness::Strict).expect_err("an argument is a text").to_string();
    assert!(refused.contains("cannot unmarshal bool into Go struct field Container.spec.containers.args"), "{refused}");
    let text = text.replace("on]", "\"on\"]");
    let value = decode(pod, text.as_bytes(), Strictness::Strict).expect("a pod").value;
    assert_eq!(value["metadata"]["labels"], json!({"1": "a", "true": "b"}));
    assert_eq!(value["spec"]["hostNetwork"], true);
    assert_eq!(value["spec"]["containers"][0]["args"], json!(["yes", "on"]));
    assert_eq!(value["spec"]["volumes"][0]["configMap"]["defaultMode"], 420);
}

#[test]
fn bytes_that_are_no_text() {
    for (bytes, want) in [
        (&b"a: \xff"[..], "yaml: invalid leading UTF-8 octet"),
        (b"a: \xc3", "yaml: incomplete UTF-8 octet sequence"),
        (b"a: \xc3(", "yaml: invalid trailing UTF-8 octet"),
        (b"a: \xc0\x80", "yaml: invalid length of a UTF-8 sequence"),
        (b"a: \xed\xa0\x80", "yaml: invalid Unicode character"),
        (b"\xff\xfea\x00:\x00 \x00\x00\xdc", "yaml: unexpected low surrogate area"),
        (b"\xff\xfea\x00:\x00 \x00\x3d\xd8a\x00", "yaml: expected low surrogate area"),
        (b"\xfe\xff\x00a\x00", "yaml: incomplete UTF-16 character"),
    ] {
        assert_eq!(refusal(bytes), want, "{bytes:?}");
    }
    for bytes in [&b"\xff\xfea\x00:\x00 \x00\x3d\xd8\x00\xde"[..], b"\xfe\xff\x00a\x00:\x00 \xd8\x3d\xde\x00"] {
        assert_eq!(to_json(bytes).expect("UTF-16"), "{\"a\":\"😀\"}".as_bytes());
    }
    // What is wrong in the text that was read before is said first.
    let far = |text: &str| [text.as_bytes(), " ".repeat(600).as_bytes(), b"\x01"].concat();
    assert_eq!(refusal(&far("a: b: c")), "yaml: mapping values are not allowed in this context");
    assert_eq!(refusal(&far("a: b")), "yaml: control characters are not allowed");
    assert_eq!(to_json(&far("a: 1\n---\n")).expect("one document"), b"{\"a\":1}");
}

#[test]
fn depth_has_an_end() {
    let deep = "yaml: exceeded max depth";
    assert_eq!(refusal("[".repeat(20_000).as_bytes()), format!("{deep} of 10000"));
    assert_eq!(refusal("- ".repeat(20_000).as_bytes()), format!("{deep} of 10000"));
    assert_eq!(refusal("? ".repeat(20_000).as_bytes()), format!("{deep} of 10000"));
    assert_eq!(refusal("[".repeat(5000).as_bytes()), "yaml: line 1: did not find expected node content");
    assert_eq!(refusal(format!("{}{}", "[".repeat(5000), "]".repeat(5000)).as_bytes()), deep);
    // Nothing that may be a key is looked at twice.
    let long = format!("{}{}", "[".repeat(9000), "a,".repeat(100_000));
    assert_eq!(refusal(long.as_bytes()), "yaml: line 1: did not find expected node content");
}

#[test]
fn aliases_do_not_make_much_of_little() {
    let many = |value: &str, count: usize| format!("a: &a {value}\nb: [{}]\n", vec!["*a"; count].join(","));
    let refused = "yaml: document contains excessive aliasing";
    let of_texts = many(&"x".repeat(1 << 17), 1000);
    assert!(of_texts.len() < 1 << 18);
    assert_eq!(refusal(of_texts.as_bytes()), refused);
    let of_keys = format!("a: &a {}\nb:\n{}", "x".repeat(1 << 17), "- *a : 1\n".repeat(1000));
    assert_eq!(refusal(of_keys.as_bytes()), refused);
    let step = |n: usize| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(","));
    let bomb = format!("a0: &a0 [lol]\n{}", (1..9).map(step).collect::<String>());
    assert_eq!(refusal(bomb.as_bytes()), refused);
    let step = |n: usize| format!("a{n}: &a{n} {{<<: [{}]}}\n", vec![format!("*a{}", n - 1); 9].join(","));
    let merges = format!("a0: &a0 {{lol: 1}}\n{}", (1..9).map(step).collect::<String>());
    assert_eq!(refusal(merges.as_bytes()), refused);
    // As much as fits into a body.
    let plain = format!("[{}]", vec!["a"; 3 << 17].join(","));
    assert!(to_json(plain.as_bytes()).is_ok());
}

#[test]
fn repeated_keys_are_reported_up_to_a_number() {
    let (_, repeated) = to_json_reporting("a: 1\n".repeat(5000).as_bytes()).expect("a map");
    assert_eq!(repeated.len(), tree::MAX_REPEATED);
    assert_eq!(repeated[998], "line 1000: key \"a\" already set in map");
}

#[test]
fn documents_one_after_another() {
    let mut seen = Vec::new();
    let stream = "a: &x 1\n---\n- yes\n...\n%YAML 1.1\n---\n# nothing\n--- b\n";
    each::<DecodeError>(stream.as_bytes(), |value| {
        seen.push(value);
        Ok(())
    })
    .expect("four documents");
    assert_eq!(seen, [json!({"a": 1}), json!([true]), Value::Null, json!("b")]);
    let refused = each::<DecodeError>(b"a\n---\n*x\n", |_| Ok(())).expect_err("another document's").to_string();
    assert_eq!(refused, "yaml: unknown anchor 'x' referenced");
}

#[test]
fn what_is_written_is_what_is_read_in_its_json() {
    for (text, want) in [
        ("a\u{85}b", "a b"),
        ("\u{85}", " "),
        ("a\u{85}", "a "),
        (" \u{85}a", " a"),
        ("a  \u{85}  b", "a b"),
        ("a\u{85}\u{85}b", "a\nb"),
        ("a\u{85} \u{85}\u{85}b", "a\n\nb"),
        ("a\u{85}b \u{85}\u{85} c ", "a b\nc "),
        ("\u{85}\u{85}", "\n"),
        ("a\u{85}b\nc", "a b\nc"),
        ("a\t\u{85}\tb", "a\t \tb"),
    ] {
        assert_eq!(encode_any(&json!({"k": [text]})), Ok(emit::document(&json!({"k": [want]}))), "{text:?}");
    }
    for text in ["\u{7f}", "é\u{80}", "\u{9f}\u{85}", "\u{fffe}"] {
        let refused = encode_any(&json!([text])).expect_err("none of YAML's").to_string();
        assert_eq!(refused, "yaml: control characters are not allowed", "{text:?}");
    }
    for (value, line) in [
        (json!({"a\u{85}b": 1}), 1),
        (json!({"a": 1, "k": [1, {"a\u{85}\u{85}b": "x\u{85}y"}]}), 2),
        (json!({"a": "x\u{85}\u{85}y", "b": {"c\u{85}\u{85}\u{85}": 1}}), 5),
    ] {
        let refused = encode_any(&value).expect_err("a key on two lines").to_string();
        assert_eq!(refused, format!("yaml: line {line}: did not find expected ',' or '}}'"));
    }
}
