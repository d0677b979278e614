//! Query parameters.

use http::Request;

/// All parameters in order, decoded.
pub fn pairs(query: &str) -> Vec<(String, String)> {
    let split = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), decode(value))
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(split).collect()
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let code = || text.get(position + 1..position + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match bytes[position] {
            b'+' => decoded.push(b' '),
            b'%' if code().is_some() => {
                decoded.extend(code());
                position += 2;
            }
            byte => decoded.push(byte),
        }
        position += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The first value of a parameter.
pub fn first<B>(request: &Request<B>, name: &str) -> Option<String> {
    all(request, name).into_iter().next()
}

/// All values of a parameter.
pub fn all<B>(request: &Request<B>, name: &str) -> Vec<String> {
    let query = request.uri().query().unwrap_or_default();
    pairs(query).into_iter().filter(|(key, _)| key == name).map(|(_, value)| value).collect()
}

/// A switch: `1` and `true` are on.
pub fn flag<B>(request: &Request<B>, name: &str) -> bool {
    first(request, name).is_some_and(|value| matches!(value.as_str(), "1" | "true" | "True" | "TRUE" | "t"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let all = pairs("command=sh&command=-c&command=echo+%22a%26b%22&input=1&bad=%zz&%C3%A4=x");
        let text: Vec<String> = all.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        assert_eq!(text, ["command:sh", "command:-c", "command:echo \"a&b\"", "input:1", "bad:%zz", "ä:x"]);
    }
}
