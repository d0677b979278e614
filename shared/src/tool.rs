//! Commands beside a component's daemon: they read a cluster, or a dump of one, and print one text.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
pub use k8s_openapi::Resource;
use kube::api::ListParams;
pub use serde_json::Value;

use crate::client::typed;

/// Objects per page of a list.
const PAGE: u32 = 500;

/// An option that names a file.
#[must_use]
pub fn path_arg(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).value_name("FILE").value_parser(value_parser!(PathBuf))
}

/// Options that say where the cluster is.
#[must_use]
pub fn cluster_args() -> [Arg; 2] {
    [
        path_arg("kubeconfig", "Credentials for a live cluster"),
        path_arg("from-dump", "Objects from a file, or a folder of files, as kubectl get -o json or yaml writes them")
            .conflicts_with("kubeconfig"),
    ]
}

/// The option that says how to print.
#[must_use]
pub fn output_arg() -> Arg {
    let arg = Arg::new("output").short('o').long("output").value_parser(["table", "json"]);
    arg.default_value("table").action(ArgAction::Set)
}

/// Runs a command that prints one text, if the arguments ask for it by name.
pub fn run(
    name: &str,
    command: fn() -> Command,
    tell: impl AsyncFnOnce(&ArgMatches) -> anyhow::Result<String>,
    args: impl IntoIterator<Item = OsString>,
) -> Option<ExitCode> {
    let mut args = args.into_iter().peekable();
    if args.peek().is_none_or(|first| first != name) {
        return None;
    }
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) => {
            let failed = e.use_stderr();
            // Nothing is left to do when even this cannot be said.
            let _ = e.print();
            return Some(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
    };
    Some(print(tell(&matches)))
}

/// Prints what is told, or why it cannot be.
pub fn print(told: impl Future<Output = anyhow::Result<String>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(anyhow::Error::new).and_then(|runtime| runtime.block_on(told)) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("Error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// A client with these credentials, or with those that `KUBECONFIG` names.
///
/// # Errors
/// Credentials that cannot be read.
pub async fn connect(user_agent: &str, kubeconfig: Option<&Path>) -> anyhow::Result<kube::Client> {
    // Fails only when one is installed already, and then there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fallback = || std::env::var("KUBECONFIG").unwrap_or_default();
    crate::client::new(&crate::client::Options {
        kubeconfig: kubeconfig.map_or_else(fallback, |p| p.to_string_lossy().into_owned()),
        master: String::new(),
        qps: 0.0,
        burst: 100,
        user_agent: crate::client::user_agent(user_agent),
    })
    .await
}

/// Defines a cluster's objects of some kinds at one moment, from an API server or from files.
#[macro_export]
macro_rules! dump {
    ($(#[$about:meta])* $name:ident $($field:ident: $kind:ty),* $(,)?) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        #[allow(missing_docs, reason = "one field for each row of the table")]
        pub struct $name {
            $(pub $field: Vec<$kind>,)*
        }

        impl $name {
            /// Takes in an object, or a list of objects; others are passed over.
            ///
            /// # Errors
            /// An object that is not of the kind it says.
            pub fn add(&mut self, value: $crate::tool::Value) -> anyhow::Result<()> {
                use $crate::tool::{Context as _, Resource as _, Value};
                let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
                if let Some(item) = kind.strip_suffix("List") {
                    let items = value.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
                    for mut one in items {
                        if one.get("kind").is_none() {
                            one["kind"] = item.into();
                        }
                        self.add(one)?;
                    }
                    return Ok(());
                }
                match kind.as_str() {
                    $(<$kind>::KIND => {
                        let object = $crate::types::from_tree(&value).map_err(anyhow::Error::msg).with_context(|| format!("reading a {kind}"))?;
                        self.$field.push(object);
                    })*
                    _ => {}
                }
                Ok(())
            }

            /// Reads a file, or all files of a folder.
            ///
            /// # Errors
            /// Files that cannot be read.
            pub fn load(path: &std::path::Path) -> anyhow::Result<Self> {
                let mut out = Self::default();
                $crate::tool::documents(path, &mut |document| out.add(document))?;
                Ok(out)
            }

            /// Reads a live cluster.
            ///
            /// # Errors
            /// What the API server refuses; kinds it does not serve are taken as empty.
            pub async fn read(client: &kube::Client) -> anyhow::Result<Self> {
                Ok(Self { $($field: $crate::tool::all(client).await?,)* })
            }
        }
    };
}

/// All objects of a kind; none of one that is not served.
///
/// # Errors
/// A refusal of the API server, in its words.
pub async fn all<K: crate::informer::Object + Resource>(client: &kube::Client) -> anyhow::Result<Vec<K>> {
    let mut out = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = match typed::page::<K>(client, &params).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(out),
            // In the server's words, once: they say who may not do what.
            Err(kube::Error::Api(status)) => anyhow::bail!("listing {}: {}", <K as Resource>::KIND, status.message),
            Err(e) => return Err(e).with_context(|| format!("listing {}", <K as Resource>::KIND)),
        };
        let more = page.metadata.continue_.clone().filter(|c| !c.is_empty());
        out.extend(page.items);
        match more {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(out),
        }
    }
}

/// Calls `take` for every object (or list of objects) in a file, or in all files of a folder, in turn.
///
/// # Errors
/// Files that cannot be read, and those of `take`.
pub fn documents(path: &Path, take: &mut dyn FnMut(Value) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let reading = || format!("reading {}", path.display());
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(reading)?;
        let mut inside = entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
        inside.sort();
        let readable =
            |p: &Path| p.is_dir() || p.extension().is_some_and(|e| ["json", "yaml", "yml"].iter().any(|x| e == *x));
        return inside.iter().filter(|p| readable(p)).try_for_each(|p| documents(p, take));
    }
    let text = std::fs::read_to_string(path).with_context(reading)?;
    // JSON is read as such: it is YAML too, but that takes far longer.
    if text.trim_start().starts_with('{') {
        return serde_json::Deserializer::from_str(&text)
            .into_iter::<Value>()
            .try_for_each(|value| take(value.with_context(reading)?));
    }
    proto::yaml::each(text.as_bytes(), take).with_context(reading)
}
