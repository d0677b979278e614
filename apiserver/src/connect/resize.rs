//! Sizes of a terminal, as a client writes them: one JSON object after another. The kubelet is sent what could be read
//! of them, one a line; after the first that could not, nothing. Pure.

use serde::Deserialize;

/// Most bytes of a size that is not complete; more is none.
const LONGEST: usize = 64 << 10;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Size {
    #[serde(rename = "Width", alias = "width")]
    width: u16,
    #[serde(rename = "Height", alias = "height")]
    height: u16,
}

/// Parser of terminal resize messages.
#[derive(Default)]
pub(super) struct Sizes {
    rest: Vec<u8>,
    over: bool,
}

impl Sizes {
    /// Reads client bytes; returns the resize messages for the kubelet.
    pub(super) fn parse_messages(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if self.over {
            return out;
        }
        self.rest.extend_from_slice(bytes);
        let mut sizes = serde_json::Deserializer::from_slice(&self.rest).into_iter::<Size>();
        for size in sizes.by_ref() {
            match size {
                Ok(Size { width, height }) => {
                    out.extend_from_slice(format!("{{\"Width\":{width},\"Height\":{height}}}\n").as_bytes());
                }
                Err(error) => {
                    self.over = !error.is_eof();
                    break;
                }
            }
        }
        let read = sizes.byte_offset();
        self.rest.drain(..read);
        self.over |= self.rest.len() > LONGEST;
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resize_messages_are_parsed_in_any_pieces() {
        let mut sizes = Sizes::default();
        for (bytes, want) in [
            ("{\"Width\":10,\"Height\":20}", "{\"Width\":10,\"Height\":20}\n"),
            ("{\"width\":1,\"height\":2}\n{\"Width\"", "{\"Width\":1,\"Height\":2}\n"),
            (":5}", "{\"Width\":5,\"Height\":0}\n"),
            ("junk", ""),
            ("{\"Width\":10,\"Height\":20}", ""),
        ] {
            assert_eq!(String::from_utf8_lossy(&sizes.parse_messages(bytes.as_bytes())), want, "{bytes}");
        }
    }
}
