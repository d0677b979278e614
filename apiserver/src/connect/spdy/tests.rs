//! Both sides of a connection, over a buffer.

use bytes::{BufMut as _, BytesMut};

use super::{Codec, Frame, SpdyError, put_data, put_ping};

#[test]
fn frames_round_trip() {
    let (mut client, mut server) = (Codec::default(), Codec::default());
    let mut wire = BytesMut::new();
    client.open(&mut wire, 1, &[("streamType", "error")]).expect("headers");
    client.open(&mut wire, 3, &[("streamType", "stdout"), ("port", "80")]).expect("headers");
    put_data(&mut wire, 3, b"hello", false);
    put_data(&mut wire, 3, b"", true);
    put_ping(&mut wire, 7);
    let open = |stream, headers: &[(&str, &str)]| Frame::Open {
        stream,
        headers: headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        fin: false,
    };
    let expected = [
        open(1, &[("streamtype", "error")]),
        open(3, &[("streamtype", "stdout"), ("port", "80")]),
        Frame::Data { stream: 3, bytes: "hello".into(), fin: false },
        Frame::Data { stream: 3, bytes: "".into(), fin: true },
        Frame::Ping(7),
    ];
    // One byte at a time: frames do not care how they arrive.
    let mut buffer = BytesMut::new();
    let mut heard = Vec::new();
    for byte in wire {
        buffer.put_u8(byte);
        heard.extend(server.decode(&mut buffer).expect("well-formed"));
    }
    assert_eq!(heard, expected);
}

#[test]
fn a_header_block_starts_with_the_dictionarys_identifier() {
    let mut wire = BytesMut::new();
    Codec::default().open(&mut wire, 1, &[("a", "b")]).expect("headers");
    assert_eq!(wire[..4], [0x80, 3, 0, 1]);
    assert_eq!(wire[19..24], [0xbb, 0xe3, 0xc6, 0xa7, 0xc2], "zlib header with FDICT, then the dictionary");
}

#[test]
fn nonsense_is_refused_without_a_panic() {
    let decode = |bytes: &[u8]| Codec::default().decode(&mut BytesMut::from(bytes));
    assert_eq!(decode(&[0x80, 2, 0, 1, 0, 0, 0, 0]), Err(SpdyError::Version(2)));
    assert_eq!(decode(&[0x80, 3, 0, 1, 0, 0, 0, 2, 0, 0]), Err(SpdyError::Short));
    assert_eq!(decode(&[0, 0, 0, 1, 0, 0xff, 0xff, 0xff]), Err(SpdyError::TooLong(0x00ff_ffff)));
    assert_eq!(decode(&[0x80, 3, 0, 2, 0, 0, 0, 8, 0, 0, 0, 1, 9, 9, 9, 9]), Err(SpdyError::Headers));
    // Every truncation and every flipped byte of a good conversation.
    let mut wire = BytesMut::new();
    Codec::default().open(&mut wire, 1, &[("streamType", "stdin")]).expect("headers");
    put_data(&mut wire, 1, b"bytes", true);
    for at in 0..wire.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut broken = wire.clone();
            broken[at] = value;
            let mut codec = Codec::default();
            while let Ok(Some(_)) = codec.decode(&mut broken) {}
        }
        let mut cut = BytesMut::from(&wire[..at]);
        let mut codec = Codec::default();
        while let Ok(Some(_)) = codec.decode(&mut cut) {}
    }
}
