//! Trace context: trace ID, span ID and sampling decision of a span in another process.

use std::sync::Arc;

/// Identifies a span to those who go on from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) sampled: bool,
    /// `tracestate` and `baggage`, which are handed on as they came.
    pub(super) carried: Option<Arc<[(&'static str, String)]>>,
}

/// Headers that go along with `traceparent`.
const CARRIED: [&str; 2] = ["tracestate", "baggage"];

impl Context {
    /// Creates the context of a new trace, or of a span below another.
    pub(super) fn new(parent: Option<&Self>) -> Self {
        let fresh = || std::iter::repeat_with(rand::random::<u128>).find(|id| *id != 0).unwrap_or(1);
        let span = std::iter::repeat_with(rand::random::<u64>).find(|id| *id != 0).unwrap_or(1);
        match parent {
            Some(parent) => Self { span, ..parent.clone() },
            None => Self { trace: fresh(), span, sampled: false, carried: None },
        }
    }

    /// Reads the context from headers; `None` without a valid one.
    pub fn read<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let mut context = parent(header("traceparent")?)?;
        let carried: Vec<_> = CARRIED
            .into_iter()
            .filter_map(|name| Some((name, header(name).filter(|text| !text.is_empty())?.to_owned())))
            .collect();
        context.carried = (!carried.is_empty()).then(|| carried.into());
        Some(context)
    }

    /// Writes the context as headers.
    pub(super) fn headers(&self) -> Vec<(&'static str, String)> {
        let parent = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled));
        let carried = self.carried.iter().flat_map(|all| all.iter().cloned());
        std::iter::once(("traceparent", parent)).chain(carried).collect()
    }

    pub(super) fn state(&self) -> String {
        let mut carried = self.carried.iter().flat_map(|all| all.iter());
        carried.find(|(name, _)| *name == "tracestate").map(|(_, text)| text.clone()).unwrap_or_default()
    }
}

/// `version-trace-span-flags`, of which versions to come may say more.
fn parent(text: &str) -> Option<Context> {
    let mut parts = text.trim().split('-');
    let version = hex(parts.next()?, 2)?;
    let (trace, span, flags) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
    let more = parts.next().is_some();
    if version == 0xff || trace == 0 || span == 0 || (version == 0 && (more || flags > 2)) {
        return None;
    }
    Some(Context { trace, span: u64::try_from(span).ok()?, sampled: flags & 1 == 1, carried: None })
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let good = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    good.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read_and_handed_on() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let good = format!("00-{trace}-{span}-01");
        for (text, want) in [
            (good.clone(), Some(true)),
            (format!("00-{trace}-{span}-00"), Some(false)),
            (format!("01-{trace}-{span}-09-more"), Some(true)),
            (format!("00-{trace}-{span}-01-more"), None),
            (format!("ff-{trace}-{span}-01"), None),
            (format!("00-{}-{span}-01", "0".repeat(32)), None),
            (format!("00-{trace}-{}-01", "0".repeat(16)), None),
            (format!("00-{}-{span}-01", trace.to_uppercase()), None),
            ("nonsense".to_owned(), None),
        ] {
            assert_eq!(parent(&text).map(|c| c.sampled), want, "{text}");
        }
        let headers = |name: &str| match name {
            "traceparent" => Some(good.as_str()),
            "baggage" => Some("a=b"),
            _ => None,
        };
        let context = Context::read(headers).expect("a context");
        assert_eq!(context.headers(), [("traceparent", good.clone()), ("baggage", "a=b".to_owned())]);
        let below = Context::new(Some(&context));
        assert_eq!((below.trace, below.sampled, below.span == context.span), (context.trace, true, false));
    }
}
