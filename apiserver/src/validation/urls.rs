//! URLs as Go's `net/url` takes them apart.

use shared::status::go_quote;

/// The parts that rules ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Url<'t> {
    pub(super) scheme: String,
    pub(super) user: Option<&'t str>,
    pub(super) host: &'t str,
    pub(super) query: &'t str,
    pub(super) fragment: &'t str,
}

/// Takes a text apart; the error is in Go's words.
pub(super) fn parse(text: &str) -> Result<Url<'_>, String> {
    let (url, fragment) = text.split_once('#').unwrap_or((text, ""));
    let wrong = |of: &str, why: String| format!("parse {}: {why}", go_quote(of));
    let parsed = parts(url).map_err(|why| wrong(url, why))?;
    escapes(fragment, false).map_err(|why| wrong(text, why))?;
    Ok(Url { fragment, ..parsed })
}

fn parts(text: &str) -> Result<Url<'_>, String> {
    if text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let (scheme, rest) = scheme(text)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let url = Url { scheme, query, ..Url::default() };
    if !rest.starts_with('/') {
        if !url.scheme.is_empty() {
            return Ok(url);
        }
        if rest.split('/').next().is_some_and(|first| first.contains(':')) {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
    }
    let with_authority = !url.scheme.is_empty() || !rest.starts_with("///");
    let Some(rest) = rest.strip_prefix("//").filter(|_| with_authority) else {
        return escapes(rest, false).map(|()| url);
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    judge_host(host)?;
    if let Some(user) = user {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
        if !user.chars().all(fits) {
            return Err("net/url: invalid userinfo".to_owned());
        }
        escapes(user, false)?;
    }
    escapes(path, false)?;
    Ok(Url { user, host, ..url })
}

fn scheme(text: &str) -> Result<(String, &str), String> {
    for (i, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if i > 0 => {}
            ':' if i == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((text[..i].to_ascii_lowercase(), &text[i + 1..])),
            _ => break,
        }
    }
    Ok((String::new(), text))
}

fn judge_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        let end = host.rfind(']').ok_or("missing ']' in host")?;
        &host[end + 1..]
    } else {
        host.rfind(':').map_or("", |colon| &host[colon..])
    };
    let digits = port.strip_prefix(':').unwrap_or(if port.is_empty() { "" } else { "x" });
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("invalid port {} after host", go_quote(port)));
    }
    escapes(host, true)
}

/// Escapes are of two digits, and hosts have no other odd characters.
fn escapes(text: &str, host: bool) -> Result<(), String> {
    for (i, c) in text.char_indices() {
        if c == '%' {
            let digits = text.as_bytes().get(i + 1..i + 3);
            let fits = digits.is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit));
            // Hosts escape nothing that could stand there as it is.
            if !fits || (host && digits.is_some_and(|d| d[0] < b'8' && d != b"25")) {
                let end = text.char_indices().map(|(at, c)| at + c.len_utf8()).filter(|at| *at > i).take(3).last();
                return Err(format!("invalid URL escape {}", go_quote(&text[i..end.unwrap_or(text.len())])));
            }
        }
        let odd = c.is_ascii() && !c.is_ascii_alphanumeric() && !"-_.~!$&'()*+,;=:[]<>\"%".contains(c);
        if host && odd {
            return Err(format!("invalid character {} in host name", go_quote(c.encode_utf8(&mut [0; 4]))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url = parse("HTTPS://u:p@[::1]:80/a%20b?c=d#e").expect("a URL");
        let want = Url { scheme: "https".to_owned(), user: Some("u:p"), host: "[::1]:80", query: "c=d", fragment: "e" };
        assert_eq!(url, want);
        assert_eq!(parse("").expect("nothing"), Url::default());
        assert_eq!(parse("a/b?").map(|url| url.host), Ok(""));
        for (text, want) in [
            ("://", "missing protocol scheme"),
            ("1:2", "first path segment in URL cannot contain colon"),
            ("https://x:y", "invalid port \":y\" after host"),
            ("https://x y", "invalid character \" \" in host name"),
            ("https://[::1", "missing ']' in host"),
            ("https://x.y/%zz", "invalid URL escape \"%zz\""),
            ("https://a b@x", "net/url: invalid userinfo"),
            ("https://x\n", "net/url: invalid control character in URL"),
        ] {
            assert_eq!(parse(text), Err(format!("parse {}: {want}", go_quote(text))));
        }
    }
}
