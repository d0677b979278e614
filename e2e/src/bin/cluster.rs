//! `cluster`: starts, stops and feeds a cluster on this machine. The Makefile calls it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Command};
use e2e::layout::Layout;
use e2e::machine::{self, Machine};
use e2e::{backup, bench, down, image, load_balancer, status, supervisor, up};

fn main() -> ExitCode {
    match run(&command().get_matches()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Command {
    let path = |name: &'static str| Arg::new(name).required(true).value_parser(clap::value_parser!(PathBuf));
    Command::new("cluster")
        .about("A Kubernetes cluster on this machine, from real parts")
        .subcommand_required(true)
        .arg(
            Arg::new("run")
                .long("run")
                .help("the run directory")
                .default_value(".run")
                .value_parser(clap::value_parser!(PathBuf)),
        )
        .subcommand(
            Command::new("up")
                .about("start it and wait until every node is Ready")
                .arg(Arg::new("nodes").long("nodes").default_value("1").value_parser(clap::value_parser!(usize)))
                .arg(
                    Arg::new("control-plane")
                        .long("control-plane")
                        .help("how the control plane runs")
                        .default_value("processes")
                        .value_parser(["processes", "static-pods", "ha"]),
                )
                .arg(Arg::new("service-cidr").long("service-cidr").help("Service addresses"))
                .arg(
                    Arg::new("dual-stack")
                        .long("dual-stack")
                        .help("with IPv6 addresses beside those of IPv4")
                        .action(ArgAction::SetTrue),
                )
                .arg(
                    Arg::new("dns")
                        .long("dns")
                        .help("an image archive of CoreDNS: with cluster DNS")
                        .value_parser(clap::value_parser!(PathBuf)),
                ),
        )
        .subcommand(Command::new("down").about("stop it and leave nothing behind"))
        .subcommand(Command::new("status").about("tell what runs, and how to talk to it"))
        .subcommand(Command::new("load").about("import an image archive into every node").arg(path("archive")))
        .subcommand(
            Command::new("backup").about("save etcd and the certificates into a new folder").arg(path("folder")),
        )
        .subcommand(
            Command::new("restore").about("bring etcd back to what a backup has").arg(path("folder")).arg(
                Arg::new("revisions")
                    .long("revisions")
                    .help("how many revisions may have passed since the backup, where the old data is lost")
                    .value_parser(clap::value_parser!(u32)),
            ),
        )
        .subcommand(Command::new("bench").about("measure the figures the project is held to").arg(path("archive")))
        .subcommand(process_command("stop", "stop a process of a machine and keep it down"))
        .subcommand(process_command("start", "let a stopped process run again"))
        .subcommand(
            Command::new(load_balancer::NAME)
                .about("give addresses to Services of type LoadBalancer")
                .hide(true)
                .arg(Arg::new("dual-stack").long("dual-stack").action(ArgAction::SetTrue)),
        )
        .subcommand(Command::new("supervise").hide(true).arg(path("machine")))
        .subcommand(
            Command::new("wrap")
                .about("make an image archive from a root file system's tar")
                .arg(path("layer"))
                .arg(path("archive"))
                .arg(Arg::new("reference").long("reference").required(true))
                .arg(Arg::new("env").long("env").action(ArgAction::Append))
                .arg(Arg::new("cmd").long("cmd").action(ArgAction::Append))
                .arg(Arg::new("entrypoint").last(true).action(ArgAction::Append)),
        )
}

fn process_command(name: &'static str, about: &'static str) -> Command {
    Command::new(name).about(about).arg(Arg::new("machine").required(true)).arg(Arg::new("process").required(true))
}

fn run(matches: &ArgMatches) -> Result<()> {
    let root: &PathBuf = matches.get_one("run").context("no run directory")?;
    let mut layout = Layout::new(root)?;
    match matches.subcommand() {
        Some(("up", given)) => {
            let kind = match given.get_one::<String>("control-plane").map(String::as_str) {
                Some("static-pods") => up::ControlPlane::StaticPods,
                Some("ha") => up::ControlPlane::HighlyAvailable,
                _ => up::ControlPlane::Processes,
            };
            layout.dual_stack = given.get_flag("dual-stack");
            if let Some(range) = given.get_one::<String>("service-cidr") {
                layout.set_service_cidr(range)?;
            }
            let dns = given.get_one::<PathBuf>("dns").map(PathBuf::as_path);
            let kubeconfig = layout.admin_conf();
            up::up(layout, given.get_one("nodes").copied().unwrap_or(1), kind, dns)?;
            println!("{}", kubeconfig.display());
            Ok(())
        }
        Some(("down", _)) => down::down(&layout),
        Some(("status", _)) => {
            print!("{}", status::status(&layout)?);
            Ok(())
        }
        Some(("load", given)) => up::load(&layout, path(given, "archive")?),
        Some(("backup", given)) => backup::backup(&layout, path(given, "folder")?),
        Some(("restore", given)) => {
            backup::restore(&layout, path(given, "folder")?, given.get_one::<u32>("revisions").copied())
        }
        Some(("bench", given)) => bench::bench(&layout, path(given, "archive")?),
        Some((load_balancer::NAME, given)) => load_balancer::run(&layout, given.get_flag("dual-stack")),
        Some(("supervise", given)) => supervisor::supervise(&Machine::read(path(given, "machine")?)?),
        Some(("stop", given)) => machine::stop(&mark(&layout, given)?),
        Some(("start", given)) => std::fs::remove_file(mark(&layout, given)?).context("it is not stopped"),
        Some(("wrap", given)) => wrap(given),
        _ => bail!("unknown command"),
    }
}

fn path<'a>(given: &'a ArgMatches, name: &str) -> Result<&'a Path> {
    given.get_one::<PathBuf>(name).map(PathBuf::as_path).with_context(|| format!("no {name}"))
}

fn mark(layout: &Layout, given: &ArgMatches) -> Result<PathBuf> {
    let name = |argument: &str| given.get_one::<String>(argument).cloned().unwrap_or_default();
    let folder = layout.machine(&name("machine"));
    let machine = Machine::read(&Machine::file(&folder))?;
    if !machine.processes.iter().any(|process| process.name == name("process")) {
        bail!("{} has no process {}", machine.name, name("process"));
    }
    Ok(folder.join(format!("{}.stopped", name("process"))))
}

fn wrap(given: &ArgMatches) -> Result<()> {
    let many = |name: &str| given.get_many::<String>(name).unwrap_or_default().cloned().collect();
    let config = image::Config {
        reference: given.get_one::<String>("reference").cloned().unwrap_or_default(),
        entrypoint: many("entrypoint"),
        command: many("cmd"),
        environment: many("env"),
        ..image::Config::default()
    };
    image::wrap(path(given, "layer")?, &config, path(given, "archive")?)
}
