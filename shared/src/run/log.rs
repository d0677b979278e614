//! Log lines as klog writes them, or one JSON object per line with `--logging-format=json`.

use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use serde_json::Value;

use crate::config::{ConfigError, Settings};
use crate::flags::FlagSet;
use crate::status::go_quote;

/// Sets the filter anew; kept as a function so that the layer's type stays inside.
type Reload = Box<dyn Fn(Targets) + Send + Sync>;
static RELOAD: OnceLock<Reload> = OnceLock::new();
static VERBOSITY: AtomicU32 = AtomicU32::new(0);
static JSON: AtomicBool = AtomicBool::new(false);

/// The crates of this product; the rest is chatty and speaks up only from `-v=8`.
const OURS: [&str; 8] =
    ["proto", "shared", "apiserver", "controller_manager", "scheduler", "kubelet", "kube_proxy", "e2e"];

fn filter(verbosity: u32, vmodule: &str) -> Targets {
    let level = |v: u32| match v {
        0..=1 => LevelFilter::INFO,
        2..=4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let others = match verbosity {
        0..=7 => LevelFilter::WARN,
        8..=9 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let mut targets = Targets::new().with_default(others);
    if verbosity < 8 {
        // Logs every refused connection on its own; whoever asked says so in context.
        targets = targets.with_target("kube_client", LevelFilter::OFF);
    }
    for name in OURS {
        targets = targets.with_target(name, level(verbosity));
    }
    for (module, v) in vmodule.split(',').filter_map(|p| p.split_once('=')) {
        // A pattern names a source file upstream; here it names a module of any of our crates.
        let module = module.trim_end_matches('*').trim_end_matches(".rs");
        for name in OURS {
            targets = targets.with_target(format!("{name}::{module}"), level(v.parse().unwrap_or(0)));
        }
    }
    targets
}

/// The `-v` in force.
pub fn verbosity() -> u32 {
    VERBOSITY.load(Ordering::Relaxed)
}

/// Changes `-v` while running, as `PUT /debug/flags/v` does.
pub fn set_verbosity(verbosity: u32) {
    VERBOSITY.store(verbosity, Ordering::Relaxed);
    if let Some(reload) = RELOAD.get() {
        reload(filter(verbosity, ""));
    }
}

/// Applies the `logging` section of a configuration file, in which format and verbosity of the flags are set already.
/// `--vmodule` stands above the file's patterns.
///
/// # Errors
/// Upstream's text for a format that there is not.
pub fn set_logging(settings: &Settings, flags: &FlagSet) -> Result<(), ConfigError> {
    set_format(&settings.string("logging.format")).map_err(|why| ConfigError::Refused(format!("logging.{why}")))?;
    let verbosity = u32::try_from(settings.integer("logging.verbosity")).unwrap_or(0);
    VERBOSITY.store(verbosity, Ordering::Relaxed);
    let patterns = match flags.is_set("vmodule") {
        true => flags.string("vmodule"),
        false => vmodule(settings.get("logging.vmodule")),
    };
    if let Some(reload) = RELOAD.get() {
        reload(filter(verbosity, &patterns));
    }
    Ok(())
}

/// A file's list of patterns as the text of `--vmodule`.
fn vmodule(value: Option<&Value>) -> String {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    let pair = |item: &Value| Some(format!("{}={}", item["filePattern"].as_str()?, item["verbosity"].as_u64()?));
    items.filter_map(pair).collect::<Vec<_>>().join(",")
}

/// Unknown value of `--logging-format`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("format: Invalid value: {}: Unsupported log format. Valid values: json, text", go_quote(.0))]
pub(super) struct FormatError(String);

fn set_format(format: &str) -> Result<(), FormatError> {
    let json = match format {
        "text" | "" => false,
        "json" => true,
        other => return Err(FormatError(other.to_owned())),
    };
    JSON.store(json, Ordering::Relaxed);
    Ok(())
}

/// Installs the subscriber. A second call in one process changes nothing.
pub(super) fn start(flags: &FlagSet) -> Result<(), FormatError> {
    set_format(&flags.string("logging-format"))?;
    let verbosity = u32::try_from(flags.integer("v")).unwrap_or(0);
    VERBOSITY.store(verbosity, Ordering::Relaxed);
    let (filter, handle) = reload::Layer::new(filter(verbosity, &flags.string("vmodule")));
    let lines = tracing_subscriber::fmt::layer().event_format(Lines).with_writer(std::io::stderr);
    let installed = tracing_subscriber::registry().with(filter).with(lines).try_init();
    if installed.is_ok() {
        let _ = RELOAD.set(Box::new(move |targets| {
            let _ = handle.reload(targets);
        }));
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let what = info.payload_as_str().unwrap_or("");
            tracing::error!(location = place, panic = what, "Observed a panic");
        }));
    }
    Ok(())
}

/// One error line for the time before logging is set up.
pub(super) fn plain_error(message: &str, error: &str) -> String {
    let mut line = String::new();
    let _ = header(&mut line, 'E', "run.rs", 1);
    let _ = writeln!(line, "{} err={}", go_quote(message), go_quote(error));
    line
}

struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = LogFields::default();
        event.record(&mut fields);
        let meta = event.metadata();
        let file = meta.file().map_or("-", short_file);
        match JSON.load(Ordering::Relaxed) {
            false => text_line(&mut out, *meta.level(), file, meta.line().unwrap_or(0), &fields),
            true => json_line(&mut out, *meta.level(), file, meta.line().unwrap_or(0), &fields),
        }
    }
}

/// `mod.rs` says nothing: its folder is named with it.
fn short_file(path: &str) -> &str {
    let name_at = path.rfind('/').map_or(0, |i| i + 1);
    let name = &path[name_at..];
    if !matches!(name, "mod.rs" | "lib.rs" | "main.rs") || name_at == 0 {
        return name;
    }
    let folder_at = path[..name_at - 1].rfind('/').map_or(0, |i| i + 1);
    &path[folder_at..]
}

fn header(out: &mut dyn Write, letter: char, file: &str, line: u32) -> fmt::Result {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    write!(
        out,
        "{letter}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:7} {file}:{line}] ",
        now.month(),
        now.day(),
        now.hour(),
        now.minute(),
        now.second(),
        now.subsec_nanosecond() / 1_000,
        std::process::id(),
    )
}

fn text_line(out: &mut dyn Write, level: Level, file: &str, line: u32, fields: &LogFields) -> fmt::Result {
    let letter = match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    header(out, letter, file, line)?;
    if fields.verbatim {
        return writeln!(out, "{}", fields.message);
    }
    if fields.rest.is_empty() {
        // Keep one event on one line.
        return writeln!(out, "{}", fields.message.replace('\n', "\\n"));
    }
    out.write_str(&go_quote(&fields.message))?;
    for (name, value) in &fields.rest {
        match value {
            Shown::Text(text) => write!(out, " {name}={}", go_quote(text))?,
            Shown::Bare(text) => write!(out, " {name}={text}")?,
        }
    }
    out.write_char('\n')
}

fn json_line(out: &mut dyn Write, level: Level, file: &str, line: u32, fields: &LogFields) -> fmt::Result {
    let string = |text: &str| serde_json::Value::from(text).to_string();
    let now = jiff::Timestamp::now().as_microsecond();
    write!(out, r#"{{"ts":{}.{:03},"caller":{}"#, now / 1_000, now % 1_000, string(&format!("{file}:{line}")))?;
    write!(out, r#","msg":{}"#, string(&fields.message))?;
    match level {
        Level::ERROR => {}
        Level::DEBUG => out.write_str(r#","v":2"#)?,
        Level::TRACE => out.write_str(r#","v":5"#)?,
        _ => out.write_str(r#","v":0"#)?,
    }
    for (name, value) in &fields.rest {
        match value {
            Shown::Text(text) => write!(out, ",{}:{}", string(name), string(text))?,
            Shown::Bare(text)
                if matches!(text.parse::<f64>(), Ok(n) if n.is_finite())
                    || matches!(text.as_str(), "true" | "false") =>
            {
                write!(out, ",{}:{text}", string(name))?;
            }
            Shown::Bare(text) => write!(out, ",{}:{}", string(name), string(text))?,
        }
    }
    out.write_str("}\n")
}

enum Shown {
    Text(String),
    Bare(String),
}

#[derive(Default)]
struct LogFields {
    message: String,
    /// The message is of several lines.
    verbatim: bool,
    rest: Vec<(&'static str, Shown)>,
}

impl LogFields {
    fn add(&mut self, field: &Field, value: Shown) {
        match (field.name(), value) {
            ("message", Shown::Text(text) | Shown::Bare(text)) => self.message = text,
            (name, value) => self.rest.push((name, value)),
        }
    }
}

impl Visit for LogFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Shown::Text(value.to_owned()));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Shown::Bare(value.to_string()));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Shown::Bare(value.to_string()));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Shown::Bare(value.to_string()));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "verbatim" {
            self.verbatim = value;
            return;
        }
        self.add(field, Shown::Bare(value.to_string()));
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, Shown::Text(value.to_string()));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        // Debug text brings its own quotes and brackets; displayed text needs quotes unless it is a number. An error is
        // displayed, whatever it begins with.
        let is_displayed = !text.starts_with(['"', '[', '{']) && text.parse::<f64>().is_err();
        let bare = field.name() != "error" && !is_displayed;
        self.add(field, if bare { Shown::Bare(text) } else { Shown::Text(text) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> LogFields {
        let rest = vec![("pod", Shown::Text("default/a b".into())), ("count", Shown::Bare("3".into()))];
        LogFields { message: "Pod is here".into(), verbatim: false, rest }
    }

    #[test]
    fn text_has_klogs_shape() {
        let mut out = String::new();
        text_line(&mut out, Level::WARN, "x.rs", 12, &fields()).expect("writes");
        assert!(out.starts_with('W'), "{out}");
        assert!(out.ends_with(" x.rs:12] \"Pod is here\" pod=\"default/a b\" count=3\n"), "{out}");
        assert_eq!(out.find(" x.rs"), Some("W1121 07:30:00.000000   12345".len()), "{out}");
    }

    #[test]
    fn errors_are_quoted_whatever_they_begin_with() {
        struct Kept(std::sync::Arc<parking_lot::Mutex<Vec<LogFields>>>);
        impl<S: Subscriber> tracing_subscriber::Layer<S> for Kept {
            fn on_event(&self, event: &Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
                let mut fields = LogFields::default();
                event.record(&mut fields);
                self.0.lock().push(fields);
            }
        }
        let kept = std::sync::Arc::default();
        let subscriber = tracing_subscriber::registry().with(Kept(std::sync::Arc::clone(&kept)));
        tracing::subscriber::with_default(subscriber, || {
            for error in ["[a, b]", "\"x\" not found", "{}", "5", "plain"] {
                tracing::info!(%error, "Failed");
                tracing::info!(error, "Failed");
            }
        });
        let lines = std::mem::take(&mut *kept.lock());
        let shown = lines.iter().map(|fields| {
            let mut out = String::new();
            text_line(&mut out, Level::INFO, "x.rs", 1, fields).expect("writes");
            out.split_once("] ").map(|(_, rest)| rest.to_owned()).expect("a head")
        });
        let shown: Vec<String> = shown.collect();
        assert_eq!(shown.len(), 10);
        assert!(shown.chunks(2).all(|pair| pair[0] == pair[1]), "{shown:?}");
    }

    #[test]
    fn patterns_of_a_file_are_the_flags_text() {
        let listed =
            serde_json::json!([{"filePattern": "proxier", "verbosity": 5}, {"filePattern": "a*", "verbosity": 2}]);
        assert_eq!(vmodule(Some(&listed)), "proxier=5,a*=2");
        assert_eq!(vmodule(None), "");
        assert!(set_format("yaml").is_err_and(|why| why.to_string().contains("Unsupported log format")));
    }

    #[test]
    fn json_is_json() {
        let mut out = String::new();
        json_line(&mut out, Level::INFO, "x.rs", 12, &fields()).expect("writes");
        let value: serde_json::Value = serde_json::from_str(&out).expect("json");
        assert_eq!(
            (value["msg"].as_str(), value["count"].as_i64(), value["v"].as_i64()),
            (Some("Pod is here"), Some(3), Some(0))
        );
    }

    #[test]
    fn files_are_short() {
        for (path, want) in [("a/b/x.rs", "x.rs"), ("shared/src/run/mod.rs", "run/mod.rs"), ("mod.rs", "mod.rs")] {
            assert_eq!(short_file(path), want);
        }
    }
}
