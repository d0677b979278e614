//! Steps of a request, for finding what made it slow: lines of the log, and events of spans.
//!
//! One block of memory holds the steps of a request; nothing is put in words before it turns out to have been slow.

use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::otlp;
use super::slow::{Item, TracePart};

/// Steps of one request; what comes after them is not noted.
const MOST: usize = 32;
/// Threshold from which upstream logs a trace.
pub const SLOW: Duration = Duration::from_millis(500);
/// The verbosity from which slow requests are logged.
const LOGGED_FROM: u32 = 2;
/// The verbosity from which those parts of slow requests are logged, too, that were not slow.
const WHOLE_FROM: u32 = 4;

/// Reports whether slow requests are logged.
pub fn logged() -> bool {
    crate::run::verbosity() >= LOGGED_FROM
}

fn whole() -> bool {
    crate::run::verbosity() >= WHOLE_FROM
}

/// A number that is said of a step.
pub type Said = (&'static str, usize);

#[derive(Clone, Copy, Debug)]
enum What {
    Done(&'static str, Option<Said>),
    /// A part of the number began.
    Began(u8, &'static str),
    /// End of a part, with its threshold.
    Ended(u8, Duration),
}

#[derive(Clone, Copy, Debug)]
struct TraceStep {
    /// The part it is a step of.
    of: u8,
    after: Duration,
    what: What,
}

const NOTHING: TraceStep = TraceStep { of: 0, after: Duration::ZERO, what: What::Done("", None) };

#[derive(Debug)]
struct Noted {
    steps: [TraceStep; MOST],
    count: usize,
    parts: u8,
    /// Fields of slow parts.
    fields: Vec<(u8, String)>,
}

/// The steps of a request. The request itself is its part 0.
#[derive(Debug)]
pub(super) struct Trace {
    begun: Instant,
    /// Audit ID of the request.
    audit_id: String,
    noted: Mutex<Noted>,
}

impl Trace {
    /// Of a request whose work began then.
    pub(super) fn since(begun: Instant, audit_id: &str) -> Self {
        let noted = Noted { steps: [NOTHING; MOST], count: 0, parts: 0, fields: Vec::new() };
        Self { begun, audit_id: audit_id.to_owned(), noted: Mutex::new(noted) }
    }

    pub(super) fn audit_id(&self) -> &str {
        &self.audit_id
    }

    fn note(&self, of: u8, at: Instant, what: What) {
        let mut noted = self.noted.lock();
        let at_most = noted.count;
        if let Some(step) = noted.steps.get_mut(at_most) {
            *step = TraceStep { of, after: at.saturating_duration_since(self.begun), what };
            noted.count += 1;
        }
    }

    /// Something was done.
    pub(super) fn step(&self, of: u8, at: Instant, name: &'static str, said: Option<Said>) {
        self.note(of, at, What::Done(name, said));
    }

    /// A part begins; its number.
    pub(super) fn begin(&self, of: u8, name: &'static str) -> u8 {
        let part = {
            let mut noted = self.noted.lock();
            noted.parts = noted.parts.saturating_add(1);
            noted.parts
        };
        self.note(of, Instant::now(), What::Began(part, name));
        part
    }

    /// A part has ended.
    pub(super) fn end(&self, of: u8, part: u8, least: Duration) {
        self.note(of, Instant::now(), What::Ended(part, least));
    }

    /// Reports whether a part that ends now will be logged, if its request is.
    pub(super) fn is_slow(&self, part: u8, least: Duration) -> bool {
        let began = if part == 0 { Duration::ZERO } else { self.began(part).unwrap_or_default() };
        logged() && (whole() || self.begun.elapsed().saturating_sub(began) >= least)
    }

    fn began(&self, part: u8) -> Option<Duration> {
        let noted = self.noted.lock();
        let is = |step: &&TraceStep| matches!(step.what, What::Began(p, _) if p == part);
        noted.steps[..noted.count].iter().find(is).map(|step| step.after)
    }

    /// Says something of a part.
    pub(super) fn say(&self, part: u8, fields: String) {
        self.noted.lock().fields.push((part, fields));
    }

    /// The steps of a part as events.
    pub(super) fn events(&self, part: u8) -> Vec<otlp::Event> {
        let begun = SystemTime::now() - self.begun.elapsed();
        let noted = self.noted.lock();
        let own = noted.steps[..noted.count].iter().filter(|step| step.of == part);
        let event = |step: &TraceStep| match step.what {
            What::Done(name, said) => Some(otlp::Event {
                time: super::span::nanoseconds(begun + step.after),
                name: name.to_owned(),
                attributes: said.iter().map(|(key, n)| otlp::Attribute::number(key, signed(*n))).collect(),
            }),
            _ => None,
        };
        own.filter_map(event).collect()
    }

    /// Writes the request down, if it was slow.
    pub(super) fn log(&self, name: &'static str, least: Duration) {
        let took = self.begun.elapsed();
        if took < least || !logged() {
            return;
        }
        let begun = SystemTime::now() - took;
        let request = self.request(name, took, least);
        let text = super::slow::text(&request, begun, took, whole(), rand::random::<u32>() >> 1);
        tracing::info!(verbatim = true, "{text}");
    }

    /// The request as a tree of what it did.
    fn request(&self, name: &'static str, took: Duration, least: Duration) -> TracePart {
        let noted = self.noted.lock();
        let said = |part: u8| noted.fields.iter().find(|(p, _)| *p == part).map(|(_, f)| f.clone()).unwrap_or_default();
        let mut parts: Vec<(u8, u8, TracePart)> = vec![(
            0,
            0,
            TracePart { name, ended: Some(took), least: Some(least), fields: said(0), ..TracePart::default() },
        )];
        for step in &noted.steps[..noted.count] {
            match step.what {
                What::Done(name, said) => {
                    let mut fields = String::new();
                    if let Some((key, n)) = said {
                        let _ = write!(fields, "{key}:{n}");
                    }
                    if let Some((.., part)) = parts.iter_mut().find(|(p, ..)| *p == step.of) {
                        part.items.push(Item::Step { name, after: step.after, fields });
                    }
                }
                What::Began(part, name) => {
                    let fields = said(part);
                    parts.push((part, step.of, TracePart { name, began: step.after, fields, ..TracePart::default() }));
                    if let Some((.., above)) = parts.iter_mut().find(|(p, ..)| *p == step.of) {
                        above.items.push(Item::Below(part));
                    }
                }
                What::Ended(part, least) => {
                    if let Some((.., part)) = parts.iter_mut().find(|(p, ..)| *p == part) {
                        (part.ended, part.least) = (Some(step.after), Some(least));
                    }
                }
            }
        }
        // Every part is put into the one above it, the last ones first: they are the lowest.
        while parts.len() > 1 {
            let Some((number, of, part)) = parts.pop() else { break };
            let above = parts.iter_mut().find(|(p, ..)| *p == of);
            let place =
                above.and_then(|(.., a)| a.items.iter_mut().find(|i| matches!(i, Item::Below(p) if *p == number)));
            if let Some(place) = place {
                *place = Item::Part(part);
            }
        }
        parts.pop().map(|(.., part)| part).unwrap_or_default()
    }
}

fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_put_together_whatever_the_order_of_their_steps() {
        let trace = Trace::since(Instant::now(), "");
        let now = Instant::now();
        let (one, other) = (trace.begin(0, "one"), trace.begin(0, "other"));
        let below = trace.begin(other, "below");
        trace.step(one, now, "of one", Some(("len", 3)));
        trace.step(below, now, "of below", None);
        trace.step(0, now, "last", None);
        for (above, part) in [(other, below), (0, one)] {
            trace.end(above, part, SLOW);
        }
        trace.say(one, "a:b".to_owned());
        let shown = |part: &TracePart| -> String {
            fn show(part: &TracePart, out: &mut String) {
                let _ = write!(out, "{}{}(", part.name, part.fields);
                for item in &part.items {
                    match item {
                        Item::Step { name, fields, .. } => {
                            let _ = write!(out, "{name} {fields};");
                        }
                        Item::Part(part) => show(part, out),
                        Item::Below(_) => out.push('?'),
                    }
                }
                out.push(')');
            }
            let mut out = String::new();
            show(part, &mut out);
            out
        };
        let request = trace.request("Create", Duration::ZERO, SLOW);
        assert_eq!(shown(&request), "Create(onea:b(of one len:3;)other(below(of below ;))last ;)");
        assert!(matches!(&request.items[1], Item::Part(part) if part.ended.is_none()), "it did not come to an end");
        let names = |part| trace.events(part).into_iter().map(|e| e.name).collect::<Vec<_>>();
        assert_eq!((names(one), names(0)), (vec!["of one".to_owned()], vec!["last".to_owned()]));
    }

    #[test]
    fn steps_without_end_find_an_end() {
        let trace = Trace::since(Instant::now(), "");
        for _ in 0..MOST * 2 {
            trace.step(0, Instant::now(), "again", None);
        }
        assert_eq!(trace.request("List", Duration::ZERO, SLOW).items.len(), MOST);
    }
}
