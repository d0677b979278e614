//! Prometheus' text format for pages with many series: written into a buffer that is handed on when it is full, so that a page
//! of megabytes never is in memory as a whole.

use bytes::Bytes;
use std::fmt::Write;

/// Bytes that are handed on at once.
const CHUNK: usize = 64 << 10;
/// Room for the sample that fills a chunk.
const SLACK: usize = 4 << 10;

/// Takes a page in pieces; false when nobody wants the rest.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Bytes) -> bool;

/// Labels that every sample of a subject has, written once: those of a family come in between, as labels are in the order of
/// their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Labels {
    text: String,
    /// Ends of `container`, `image`, `namespace` and `pod` in the text.
    ends: [usize; 4],
}

/// Place of a family's own labels among those of its subject: after the label of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelSlot {
    /// `cpu`, `device`, `failure_type`.
    Container = 0,
    /// `interface`, `major`, `minor`.
    Image = 1,
    /// `operation`.
    Namespace = 2,
    /// `scope`, `state`, `ulimit`.
    Pod = 3,
}

/// A label of a family: its place, name and value.
pub(super) type Own<'a> = (LabelSlot, &'a str, &'a str);

impl Labels {
    /// Labels of a subject by cAdvisor's names for them.
    pub(super) fn new(container: &str, id: &str, image: &str, name: &str, namespace: &str, pod: &str) -> Self {
        let mut labels = Self::default();
        let mut add = |key: &str, value: &str| {
            if !labels.text.is_empty() {
                labels.text.push(',');
            }
            label(&mut labels.text, key, value);
            labels.text.len()
        };
        let container = add("container", container);
        add("id", id);
        let image = add("image", image);
        add("name", name);
        let namespace = add("namespace", namespace);
        let pod = add("pod", pod);
        labels.ends = [container, image, namespace, pod];
        labels
    }

    fn write(&self, out: &mut String, own: &[Own<'_>]) {
        let mut at = 0;
        for (place, key, value) in own {
            let end = self.ends[*place as usize];
            out.push_str(&self.text[at..end]);
            at = end;
            out.push(',');
            label(out, key, value);
        }
        out.push_str(&self.text[at..]);
    }
}

/// Writes one label with its value in quotes.
fn label(out: &mut String, key: &str, value: &str) {
    out.push_str(key);
    out.push_str("=\"");
    if value.contains(['\\', '"', '\n']) {
        out.push_str(&value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
    } else {
        out.push_str(value);
    }
    out.push('"');
}

/// A page that is being written.
pub(super) struct Exposition<'a> {
    text: String,
    sink: Sink<'a>,
    is_wanted: bool,
}

impl<'a> Exposition<'a> {
    pub(super) fn new(sink: Sink<'a>) -> Self {
        Self { text: String::with_capacity(CHUNK + SLACK), sink, is_wanted: true }
    }

    /// Begins a family.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a sample of a subject; `at` is the end of its line: a time, where it has one.
    pub(super) fn series(&mut self, name: &str, labels: &Labels, own: &[Own<'_>], value: f64, at: &str) {
        self.text.push_str(name);
        self.text.push('{');
        labels.write(&mut self.text, own);
        self.text.push('}');
        self.end(value, at);
    }

    /// Writes a sample with labels of its own.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (index, (key, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            label(&mut self.text, key, value);
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        self.end(value, "");
    }

    fn end(&mut self, value: f64, at: &str) {
        self.text.push(' ');
        number(&mut self.text, value);
        self.text.push_str(at);
        self.text.push('\n');
        if self.text.len() >= CHUNK {
            self.flush();
        }
    }

    /// Reports whether anybody still reads.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    fn flush(&mut self) {
        let full = std::mem::replace(&mut self.text, String::with_capacity(CHUNK + SLACK));
        self.is_wanted = self.is_wanted && (self.sink)(Bytes::from(full));
    }
}

impl Drop for Exposition<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.flush();
        }
    }
}

/// Most whole numbers that a float holds exactly.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Writes a value; whole ones, which most are, without the arithmetic of floats.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range, as was asked before")]
fn number(out: &mut String, value: f64) {
    let _ = match value {
        _ if value.fract() == 0.0 && (0.0..EXACT).contains(&value) => write!(out, "{}", value as u64),
        _ => write!(out, "{value}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(write: impl FnOnce(&mut Exposition<'_>)) -> Vec<String> {
        let mut chunks = Vec::new();
        let mut sink = |chunk: Bytes| {
            chunks.push(String::from_utf8(chunk.to_vec()).expect("text"));
            true
        };
        write(&mut Exposition::new(&mut sink));
        chunks
    }

    #[test]
    fn labels_of_families_are_among_those_of_subjects_in_order() {
        let labels = Labels::new("c", "/a", "i", "n", "ns", "p");
        let text = page(|page| {
            page.family("m", "gauge", "help");
            page.series("m", &labels, &[], 1.0, " 5");
            page.series("m", &labels, &[(LabelSlot::Container, "cpu", "total")], 0.5, "");
            let own = [
                (LabelSlot::Container, "device", "d"),
                (LabelSlot::Image, "major", "8"),
                (LabelSlot::Image, "minor", "0"),
                (LabelSlot::Namespace, "operation", "Read"),
                (LabelSlot::Pod, "state", "s"),
            ];
            page.series("m", &labels, &own, -1.0, "");
            page.sample("x", &[("a", "q\"\\\n")], 1e300);
            page.sample("y", &[], 9e15);
        });
        let expected = "# HELP m help\n# TYPE m gauge\n\
            m{container=\"c\",id=\"/a\",image=\"i\",name=\"n\",namespace=\"ns\",pod=\"p\"} 1 5\n\
            m{container=\"c\",cpu=\"total\",id=\"/a\",image=\"i\",name=\"n\",namespace=\"ns\",pod=\"p\"} 0.5\n\
            m{container=\"c\",device=\"d\",id=\"/a\",image=\"i\",major=\"8\",minor=\"0\",name=\"n\",namespace=\"ns\",\
            operation=\"Read\",pod=\"p\",state=\"s\"} -1\n";
        let text = text.concat();
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("x{a=\"q\\\"\\\\\\n\"} 1000") && text.ends_with("\ny 9000000000000000\n"), "{text}");
    }

    #[test]
    fn pages_are_handed_on_in_chunks() {
        let labels = Labels::new("c", &"/a".repeat(500), "i", "n", "ns", "p");
        let chunks = page(|page| (0..200).for_each(|value| page.series("m", &labels, &[], f64::from(value), "")));
        assert!(chunks.len() > 2 && chunks.iter().all(|chunk| chunk.ends_with('\n') && chunk.len() < CHUNK + SLACK));
        assert_eq!(chunks.concat().lines().count(), 200);
    }

    #[test]
    fn page_that_nobody_reads_any_more_is_not_handed_on() {
        let (mut asked, labels) = (0, Labels::new("c", &"/a".repeat(500), "i", "n", "ns", "p"));
        let mut sink = |_| {
            asked += 1;
            false
        };
        let mut page = Exposition::new(&mut sink);
        (0..200).for_each(|value| page.series("m", &labels, &[], f64::from(value), ""));
        assert!(!page.is_wanted());
        drop(page);
        assert_eq!(asked, 1);
    }
}
