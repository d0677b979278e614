//! The arguments themselves, by pflag's rules.

use std::ffi::OsString;

use super::table::Row;
use super::{Stop, help, value};
use crate::status::go_quote;

struct FlagParser<'a> {
    component: &'static str,
    rows: &'a [Row],
    given: Vec<Vec<String>>,
    positional: Vec<String>,
}

/// The texts given for each row.
pub(super) fn arguments(
    component: &'static str,
    rows: &[Row],
    args: impl IntoIterator<Item = OsString>,
) -> Result<Vec<Vec<String>>, Stop> {
    let mut parser = FlagParser { component, rows, given: vec![Vec::new(); rows.len()], positional: Vec::new() };
    parser.run(args.into_iter().map(|a| a.to_string_lossy().into_owned()))?;
    Ok(parser.given)
}

impl FlagParser<'_> {
    fn run(&mut self, mut args: impl Iterator<Item = String>) -> Result<(), Stop> {
        while let Some(arg) = args.next() {
            if arg == "--" {
                self.positional.extend(args.by_ref());
            } else if let Some(long) = arg.strip_prefix("--") {
                self.long(&arg, long, &mut args)?;
            } else if let Some(short) = arg.strip_prefix('-').filter(|s| !s.is_empty()) {
                self.short(short, &mut args)?;
            } else {
                self.positional.push(arg);
            }
        }
        if self.asked("help") {
            return Err(Stop::Help(help::text(self.component, self.rows)));
        }
        if let Some(first) = self.positional.first() {
            return Err(self.refuse(if self.component == "kubelet" {
                format!("unknown command {first}")
            } else {
                let all: Vec<String> = self.positional.iter().map(|a| go_quote(a)).collect();
                format!("{} does not take any arguments, got [{}]", go_quote(self.component), all.join(" "))
            }));
        }
        match self.last("version") {
            None => Ok(()),
            Some("raw") => Err(Stop::Version(help::raw_version())),
            Some(text) if value::parse_bool(text) == Ok(true) => Err(Stop::Version(help::version())),
            Some(_) => Ok(()),
        }
    }

    fn last(&self, name: &str) -> Option<&str> {
        let i = self.rows.iter().position(|r| r.name == name)?;
        self.given[i].last().map(String::as_str)
    }

    fn asked(&self, name: &str) -> bool {
        self.last(name).is_some_and(|t| value::parse_bool(t) == Ok(true))
    }

    fn refuse(&self, message: String) -> Stop {
        match self.component {
            // This one parses inside its command and never prints usage.
            "kubelet" => Stop::Usage { message, usage: String::new() },
            "kube-apiserver" => Stop::Usage { message, usage: String::new() },
            _ => Stop::Usage { message, usage: help::usage(self.component, self.rows) },
        }
    }

    fn bad_flag(&self, message: String) -> Stop {
        let message =
            if self.component == "kubelet" { format!("failed to parse kubelet flag: {message}") } else { message };
        self.refuse(message)
    }

    fn long(&mut self, arg: &str, long: &str, args: &mut impl Iterator<Item = String>) -> Result<(), Stop> {
        if long.starts_with('-') || long.starts_with('=') {
            return Err(self.bad_flag(format!("bad flag syntax: {arg}")));
        }
        let (name, text) = match long.split_once('=') {
            Some((name, text)) => (name, Some(text.to_owned())),
            None => (long, None),
        };
        let wanted = name.replace('_', "-");
        let Some(i) = self.rows.iter().position(|r| r.name == wanted) else {
            return Err(self.bad_flag(format!("unknown flag: --{name}")));
        };
        let text = match text {
            Some(text) => text,
            None if self.rows[i].optional => "true".to_owned(),
            None => args.next().ok_or_else(|| self.bad_flag(format!("flag needs an argument: --{name}")))?,
        };
        self.set(i, text)
    }

    fn short(&mut self, short: &str, args: &mut impl Iterator<Item = String>) -> Result<(), Stop> {
        let mut rest = short;
        while let Some(letter) = rest.chars().next() {
            let tail = &rest[letter.len_utf8()..];
            let Some(i) = self.rows.iter().position(|r| r.shorthand == Some(letter)) else {
                return Err(self.bad_flag(format!("unknown shorthand flag: '{letter}' in -{rest}")));
            };
            if let Some(text) = tail.strip_prefix('=') {
                return self.set(i, text.to_owned());
            }
            if self.rows[i].optional {
                self.set(i, "true".to_owned())?;
                rest = tail;
                continue;
            }
            let text = if tail.is_empty() {
                args.next().ok_or_else(|| self.bad_flag(format!("flag needs an argument: '{letter}' in -{rest}")))?
            } else {
                tail.to_owned()
            };
            return self.set(i, text);
        }
        Ok(())
    }

    fn set(&mut self, i: usize, text: String) -> Result<(), Stop> {
        let row = &self.rows[i];
        if let Err(why) = value::check(row.kind, &text) {
            let flag = match row.shorthand {
                Some(letter) => format!("-{letter}, --{}", row.name),
                None => format!("--{}", row.name),
            };
            return Err(self.bad_flag(format!(
                "invalid argument {} for {} flag: {why}",
                go_quote(&text),
                go_quote(&flag)
            )));
        }
        self.given[i].push(text);
        Ok(())
    }
}
