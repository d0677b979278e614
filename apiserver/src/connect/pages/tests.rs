use std::io::{Read as _, Write as _};

use actix_web::body::BodyStream;
use flate2::Compression;
use flate2::read::{DeflateDecoder, MultiGzDecoder};
use flate2::write::{DeflateEncoder, GzEncoder};
use futures::stream;

use super::*;

fn links() -> Links {
    Links {
        prefix: b"/p/proxy".to_vec(),
        theirs: b"10.0.0.1:80".to_vec(),
        asked: b"api:6443".to_vec(),
        ..Links::default()
    }
}

/// A page that comes in parts of some length.
fn rewritten(page: &str, length: usize) -> String {
    let (mut markup, mut out) = (Markup::new(links()), Vec::new());
    for part in page.as_bytes().chunks(length) {
        markup.push(part, &mut out);
    }
    markup.finish(&mut out);
    String::from_utf8(out).expect("text")
}

/// Rewritten pages equal those of apimachinery 0.35.4. (So did a hundred thousand random ones.)
#[test]
fn links_of_pages() {
    for (page, want) in [
        ("<A HREF=/x Title='a\"b'>x</A >", "<a href=\"/p/proxy/x\" title=\"a&#34;b\">x</A >"),
        ("<img src=//10.0.0.1:80/a.png>", "<img src=\"/p/proxy/a.png\">"),
        ("<img src='https://api:6443/a'/>", "<img src=\"https://api:6443/p/proxy/a\"/>"),
        ("<a href=https://example.com/>", "<a href=\"https://example.com/\">"),
        ("<a href=\"a b\">", "<a href=\"a%20b\">"),
        ("<a href='%zz' name=\"/x\">", "<a href=\"%zz\" name=\"/x\">"),
        ("<a href=\"/x?a=1&copy=2&lt;&copy;\">", "<a href=\"/p/proxy/x?a=1&amp;copy=2&lt;©\">"),
        ("<p title=\"&#128;&#x41;&#0;&notit;\r\n\">", "<p title=\"€A\u{fffd}&amp;notit;\n\">"),
        ("<p a=/><p a/><br/ ><p / b>", "<p a=\"/\"><p a=\"\"/><br><p b=\"\">"),
        ("<p =x a==>", "<p =x=\"\" a=\"=\">"),
        (
            "<input formaction=/f formaction=/g src>",
            "<input formaction=\"/p/proxy/f\" formaction=\"/p/proxy/g\" src=\"\">",
        ),
        (
            "<script src=/s>'<a href=/x>'</script><a href=/x>",
            "<script src=\"/p/proxy/s\">'<a href=/x>'</script><a href=\"/p/proxy/x\">",
        ),
        ("<script><!--<script></script>--></script><b x>", "<script><!--<script></script>--></script><b x=\"\">"),
        ("<title><a href=/x></title><a href=/x>", "<title><a href=/x></title><a href=\"/p/proxy/x\">"),
        ("<!--<a href=/x>--!><a href=/x><!-->", "<!--<a href=/x>--!><a href=\"/p/proxy/x\"><!-->"),
        ("<!DOCTYPE html><![CDATA[<a href=/x>]]>", "<!DOCTYPE html><![CDATA[<a href=/x>]]>"),
        ("<svg><a xlink:href=/x></svg>", "<svg><a xlink:href=\"/x\"></svg>"),
        ("<plaintext><a href=/x>", "<plaintext><a href=/x>"),
        ("a < b </> </1> <?<a href=/x>", "a < b </> </1> <?<a href=/x>"),
        ("lost <a href=\"/x", "lost "),
        ("lost </a", "lost "),
        ("kept </", "kept </"),
    ] {
        for length in [1, 2, 1000] {
            assert_eq!(rewritten(page, length), want, "{page} in parts of {length}");
        }
    }
}

#[test]
fn no_tag_takes_all_the_memory() {
    let page = format!("<a b=\"{}\">", "x".repeat(2 << 20));
    assert_eq!(rewritten(&page, 4096), page, "it is not understood");
}

/// Runs a response through the rewriting; returns its headers and body.
async fn answered(headers: &[(&str, &str)], parts: Vec<Vec<u8>>) -> Result<(HeaderMap, Vec<u8>), String> {
    let mut response = HttpResponse::Ok();
    for header in headers {
        response.insert_header(*header);
    }
    let parts = parts.into_iter().map(|part| Ok::<_, io::Error>(Bytes::from(part)));
    let response = response.body(BodyStream::new(stream::iter(parts)));
    let response =
        led_back(response, links(), false).await.map_err(|status| format!("{} {}", status.code, status.message))?;
    let (response, body) = response.into_parts();
    let body = actix_web::body::to_bytes(body).await.map_err(|error| error.to_string())?;
    Ok((response.headers().clone(), body.to_vec()))
}

#[tokio::test]
async fn only_pages_that_can_be_read_are_read() {
    const PAGE: &[u8] = b"<a href=/x>";
    const LED: &[u8] = b"<a href=\"/p/proxy/x\">";
    for (headers, want) in [
        (&[("Content-Type", "text/html")][..], LED),
        (&[("Content-Type", "text/html ; charset=latin1")], LED),
        (&[("Content-Type", "text/HTML")], PAGE),
        (&[("Content-Type", "application/xhtml+xml")], PAGE),
        (&[], PAGE),
        // (Upstream's says that it cannot read this one, and breaks off, having closed it.)
        (&[("Content-Type", "text/html"), ("Content-Encoding", "br")], PAGE),
    ] {
        let (_, body) = answered(headers, vec![PAGE.to_vec()]).await.expect("an answer");
        assert_eq!(body, want, "{headers:?}");
    }
    let sized = [("Content-Type", "text/html"), ("Content-Length", "11")];
    let (headers, _) = answered(&sized, vec![PAGE.to_vec()]).await.expect("an answer");
    assert!(!headers.contains_key(CONTENT_LENGTH), "it is another one");
}

#[tokio::test]
async fn compressed_pages_stay_compressed() {
    let page: String = (0..200_000).map(|i| format!("<a href=/{i}>\n")).collect();
    let want = page.replace("href=/", "href=\"/p/proxy/").replace('>', "\">");
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(page.as_bytes()).expect("packed");
    let gzip = packer.finish().expect("packed");
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(page.as_bytes()).expect("packed");
    let deflate = packer.finish().expect("packed");
    for (encoding, packed) in [("gzip", gzip), ("deflate", deflate)] {
        let headers = [("Content-Type", "text/html"), ("Content-Encoding", encoding)];
        let parts = packed.chunks(1000).map(<[u8]>::to_vec).collect();
        let (said, body) = answered(&headers, parts).await.expect("an answer");
        assert_eq!(first(&said, CONTENT_ENCODING), encoding);
        let mut got = String::new();
        match encoding {
            "gzip" => MultiGzDecoder::new(&body[..]).read_to_string(&mut got),
            _ => DeflateDecoder::new(&body[..]).read_to_string(&mut got),
        }
        .expect("unpacked");
        assert!(got == want, "{encoding}");
        // The beginning of a page is an error, and not half a page.
        let short = answered(&headers, vec![packed[..1000].to_vec()]).await;
        assert_eq!(short.err().as_deref(), Some("500 unexpected EOF"), "{encoding}");
    }
    for (packed, want) in [("", "EOF"), ("zzz", "unexpected EOF"), ("no gzip at all", "gzip: invalid header")] {
        let headers = [("Content-Type", "text/html"), ("Content-Encoding", "gzip")];
        let refused = answered(&headers, vec![packed.as_bytes().to_vec()]).await.err();
        assert_eq!(refused, Some(format!("500 errorf making gzip reader: {want}")), "{packed}");
    }
}

/// Streams pass without delay, and a missing body stays missing.
#[tokio::test]
async fn transport_compression_is_removed() {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(b"one").and_then(|()| packer.flush()).expect("packed");
    let first_part = std::mem::take(packer.get_mut());
    packer.write_all(b"two").expect("packed");
    let parts = [first_part, packer.finish().expect("packed")];
    let parts = parts.into_iter().map(|part| Ok::<_, io::Error>(Bytes::from(part)));
    let body = BoxBody::new(BodyStream::new(stream::iter(parts)));
    let mut staged = ProcessedBody::new(body, Stage::Transport(Box::new(Unpack::new(Packing::Gzip))));
    let mut said = Vec::new();
    while let Some(part) = std::future::poll_fn(|cx| Pin::new(&mut staged).poll_next(cx)).await {
        said.push(part.expect("unpacked"));
    }
    assert_eq!(said, ["one", "two"]);
    let mut nothing = Stage::Transport(Box::new(Unpack::new(Packing::Gzip)));
    assert_eq!(nothing.finish().expect("nothing"), b"");
}
