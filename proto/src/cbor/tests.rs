//! Tests of valid and invalid input, and of output.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::half::{narrowed, widened};
use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).expect("a byte")).collect()
}

fn shown(hex: &str) -> Result<String, String> {
    to_json(&bytes(hex)).map(|json| String::from_utf8(json).expect("text")).map_err(|e| e.to_string())
}

#[test]
fn what_clients_may_send() {
    for (hex, want) in [
        ("d9d9f7 a1 41 61 01", r#"{"a":1}"#),
        ("a1 61 61 20", r#"{"a":-1}"#),
        ("3b7fffffffffffffff", "-9223372036854775808"),
        ("bf 61 61 9f 01 f5 ff ff", r#"{"a":[1,true]}"#),
        ("5f 42 6865 43 6c6c6f ff", r#""hello""#),
        ("f9 3c00", "1.0"),
        ("fa 3fc00000", "1.5"),
        ("fb 3ff199999999999a", "1.1"),
        ("f6", "null"),
        ("d6 45 68656c6c6f", r#""aGVsbG8=""#),
        ("d5 42 fbff", r#""-_8""#),
        ("d7 42 fbff", r#""fbff""#),
        ("c0 74 323031332d30332d32315432303a30343a30305a", r#""2013-03-21T20:04:00Z""#),
        ("c1 1a 514b67b0", r#""2013-03-21T20:04:00Z""#),
        ("c1 fb 41d452d9ec200000", r#""2013-03-21T20:04:00.5Z""#),
        ("d8 64 61 61", r#""a""#),
    ] {
        assert_eq!(shown(hex).as_deref(), Ok(want), "{hex}");
    }
}

#[test]
fn what_they_may_not() {
    for (hex, want) in [
        ("", "EOF"),
        ("a1 61 61", "unexpected EOF"),
        ("5b ffffffffffffffff", "unexpected EOF"),
        ("01 02", "cbor: 1 bytes of extraneous data starting at index 1"),
        ("a2 61 61 01 41 61 02", r#"cbor: found duplicate map key "a" at map element index 1"#),
        ("a1 01 02", "cbor: cannot unmarshal positive integer into Go value of type string"),
        (
            "1b ffffffffffffffff",
            "cbor: cannot unmarshal positive integer into Go value of type int64 (18446744073709551615 overflows Go's int64)",
        ),
        ("61 ff", "cbor: invalid UTF-8 string"),
        ("f9 7e00", "cbor: data item of cbor type primitives is not accepted by protocol: floating-point NaN"),
        ("f9 7c00", "cbor: data item of cbor type primitives is not accepted by protocol: floating-point infinity"),
        (
            "f7",
            "cbor: data item of cbor type primitives is not accepted by protocol: simple value 23 is not recognized",
        ),
        ("f8 14", "cbor: invalid simple value 20 for type primitives"),
        ("1c", "cbor: invalid additional information 28 for type positive integer"),
        ("ff", "cbor: unexpected \"break\" code"),
        ("c2 41 01", "cbor: data item of cbor type tag is not accepted by protocol: bignum"),
        ("99 0401", "cbor: exceeded max number of elements 1024 for CBOR array"),
        ("b9 0401", "cbor: exceeded max number of key-value pairs 1024 for CBOR map"),
    ] {
        assert_eq!(shown(hex), Err(want.to_owned()), "{hex}");
    }
    let nested = |depth: usize| [vec![0x81; depth], vec![0x01]].concat();
    assert!(to_json(&nested(MAX_DEPTH)).is_ok());
    assert_eq!(to_json(&nested(MAX_DEPTH + 1)), Err(Error::TooDeep));
    let endless = [vec![0x9f], vec![0x01; 1025], vec![0xff]].concat();
    assert!(to_json(&endless).is_err() && stored_to_json(&endless).is_ok());
}

#[test]
fn output_is_the_same_for_the_same_object() {
    let secret = crate::schema::kind("", "v1", "Secret").expect("a kind");
    let object = json!({"apiVersion": "v1", "kind": "Secret", "data": {"k": "aGVsbG8="}, "type": "Opaque"});
    // Shorter names first, those of one length by their bytes.
    let want = bytes(
        "d9d9f7 a5 44 64617461 a1 41 6b d6 45 68656c6c6f 44 6b696e64 46 536563726574 44 74797065 46 4f7061717565 \
         48 6d65746164617461 a0 4a 61706956657273696f6e 42 7631",
    );
    let got = encode(Some(secret), &object);
    assert_eq!(got, want);
    let json: Value = serde_json::from_slice(&to_json(&got).expect("readable")).expect("JSON");
    assert_eq!(json["data"]["k"], "aGVsbG8=");
    let got = event("ADDED", &encode(None, &json!({})));
    assert_eq!(got, bytes("d9d9f7 a2 44 74797065 45 4144444544 46 6f626a656374 d9d9f7 a0"));
}

#[test]
fn every_short_number_is_itself() {
    for bits in 0..=u16::MAX {
        let number = widened(bits);
        if number.is_finite() {
            #[allow(clippy::cast_possible_truncation, reason = "the test wants a rounded value")]
            let back = narrowed(number as f32);
            assert_eq!(back.map(widened), Some(number), "{bits:04x}");
        }
    }
    assert_eq!((narrowed(65_520.0), narrowed(1.1), narrowed(1e-9)), (None, None, None));
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("others are integers, or not JSON", |f| f.fract().abs() > 0.0).prop_map(Value::from),
        any::<f32>()
            .prop_filter("others are integers, or not JSON", |f| f.fract().abs() > 0.0)
            .prop_map(|f| Value::from(f64::from(f))),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(".*", inner, 0..8).prop_map(|m| m.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn trees_come_back(tree in tree()) {
        let text = to_json(&encode(None, &tree)).expect("readable");
        prop_assert_eq!(crate::json::decode_any(&text).expect("JSON"), tree);
    }

    #[test]
    fn damaged_bytes_are_refused_or_mean_something(tree in tree(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encode(None, &tree);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = to_json(&bytes) {
            prop_assert!(crate::json::decode_any(&text).is_ok());
        }
    }
}
