//! The IPVS back end: virtual servers in the kernel's load balancer, their addresses on a device of our own, and a few
//! iptables rules that look things up in sets.

mod device;
mod netlink;
mod render;
mod rules;
mod sets;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use async_trait::async_trait;
use ipnet::IpNet;

use crate::backend::{Backend, Environment, Mode, NodePorts, Options, SyncError, SyncExtent, blocking, output};
use crate::iptables::{Batch, Tables};
use crate::kernel;
use crate::plan::{Desired, Family, PortName, Protocol};
use device::DummyDevice;
use netlink::{Ipvs, Timeouts};
use render::{NodeAddresses, Part, VirtualServer, VirtualServerOptions, part};
use rules::{JUMPS, chains};
use sets::{Set, SetMembers};
use shared::config::Settings;
use steps::{Draining, KernelStep};

/// The mode.
pub(crate) const MODE: Mode = Mode {
    name: "ipvs",
    is_historic: false,
    periods: "ipvs",
    masquerading: "iptables",
    localhost_node_ports: false,
    primary_node_ports: false,
    backend: |options, settings| Box::new(IpvsProxy::new(options, Config::of(settings))),
};

/// The scheduler of a configuration that names none.
const SCHEDULER: &str = "rr";

/// Settings of this mode alone: the `ipvs` section of the configuration.
#[derive(Clone, Debug, Default)]
struct Config {
    scheduler: String,
    /// Networks of virtual servers that are not ours to remove.
    exclude: Vec<IpNet>,
    strict_arp: bool,
    timeouts: Timeouts,
}

impl Config {
    fn of(fields: &Settings) -> Self {
        let scheduler = fields.string("ipvs.scheduler");
        let time = |name: &str| fields.duration(&format!("ipvs.{name}"));
        Self {
            scheduler: if scheduler.is_empty() { SCHEDULER.to_owned() } else { scheduler },
            exclude: fields.list("ipvs.excludeCIDRs").iter().filter_map(|net| shared::address::network(net)).collect(),
            strict_arp: fields.boolean("ipvs.strictARP"),
            timeouts: Timeouts { tcp: time("tcpTimeout"), tcp_fin: time("tcpFinTimeout"), udp: time("udpTimeout") },
        }
    }

    fn excludes(&self, address: IpAddr) -> bool {
        self.exclude.iter().any(|network| network.contains(&address))
    }
}

/// Keeps the kernel's virtual servers as wanted.
pub(crate) struct IpvsProxy {
    options: Options,
    config: Config,
    tables: Tables,
    applied: Option<Applied>,
    draining: Draining,
    is_prepared: bool,
}

/// State that was written into the kernel.
#[derive(Default)]
struct Applied {
    ports: BTreeMap<PortName, Part>,
    /// Ports that ask for a virtual server; the first one has it.
    servers: BTreeMap<VirtualServer, BTreeMap<PortName, VirtualServerOptions>>,
    members: SetMembers,
    /// Sets that had members when rules were last written.
    filled: BTreeSet<Set>,
    node: NodeAddresses,
    /// Index of the device that has the addresses: one made anew by somebody else has another.
    device: Option<u32>,
}

/// Changes of what the kernel has.
#[derive(Default)]
struct Changes {
    steps: Vec<KernelStep>,
    members: Vec<(Set, String, bool)>,
}

impl Applied {
    /// Puts what a port asks for in the place of what it asked for before.
    fn put(&mut self, name: &PortName, after: Option<Part>, draining: &mut Draining, changes: &mut Changes) {
        let before = self.ports.remove(name).unwrap_or_default();
        let wanted = after.as_ref().cloned().unwrap_or_default();
        for (set, member) in wanted.members.difference(&before.members) {
            if self.members.add(*set, member.clone()) {
                changes.member(*set, member, true);
            }
        }
        let keys: BTreeSet<&VirtualServer> = before.servers.keys().chain(wanted.servers.keys()).collect();
        for key in keys {
            let claims = self.servers.entry(key.clone()).or_default();
            let old = claims.values().next().cloned();
            match wanted.servers.get(key) {
                Some(server) => drop(claims.insert(name.clone(), server.clone())),
                None => drop(claims.remove(name)),
            }
            draining.change(key, old.as_ref(), claims.values().next(), &mut changes.steps);
            if claims.is_empty() {
                self.servers.remove(key);
            }
        }
        for (set, member) in before.members.difference(&wanted.members) {
            if self.members.remove(*set, member.clone()) {
                changes.member(*set, member, false);
            }
        }
        if let Some(part) = after {
            self.ports.insert(name.clone(), part);
        }
    }
}

impl Changes {
    fn member(&mut self, set: Set, member: &str, is_added: bool) {
        if set == Set::IpvsIps
            && let Ok(address) = member.parse()
        {
            self.steps.push(if is_added { KernelStep::Bind(address) } else { KernelStep::Unbind(address) });
        }
        self.members.push((set, member.to_owned(), is_added));
    }
}

fn kernel_error(what: &'static str) -> impl Fn(io::Error) -> SyncError {
    move |error| SyncError::Kernel { what, error }
}

/// Carries steps out: the index of the device. All of them are tried; the first error is returned.
fn carry_out(steps: Vec<KernelStep>, scheduler: &str, family: Family) -> Result<u32, SyncError> {
    let ipvs = Ipvs::open().map_err(kernel_error("ipvs"))?;
    let device = DummyDevice::open().map_err(kernel_error(device::NAME))?;
    // Reading them takes longer the more addresses services have: a change of endpoints does without.
    let binds = steps.iter().any(|step| matches!(step, KernelStep::Bind(_)));
    let elsewhere = if binds { device::addresses(family, false) } else { BTreeSet::new() };
    let mut outcome = Ok(());
    for step in steps {
        let done = match &step {
            KernelStep::Bind(address) if elsewhere.contains(address) => Ok(()),
            KernelStep::Bind(address) => device.set(*address, true),
            KernelStep::Unbind(address) => device.set(*address, false),
            KernelStep::Serve(key, server) => ipvs.set_service(key, server, scheduler),
            KernelStep::Remove(key) => ipvs.delete_service(key),
            KernelStep::SetReal(key, real, weight) => ipvs.set_real(key, *real, *weight),
            KernelStep::RemoveReal(key, real) => ipvs.delete_real(key, *real),
        };
        if let Err(error) = done {
            tracing::warn!(?step, %error, "Failed to change IPVS");
            outcome = outcome.and(Err(SyncError::Kernel { what: "ipvs", error }));
        }
    }
    outcome.map(|()| device.index())
}

/// Virtual servers that the kernel has, with those of their real servers that get connections.
type Found = BTreeMap<VirtualServer, (String, VirtualServerOptions)>;

/// Real servers with weight 0 that the kernel has: an earlier proxy drained them.
type Drained = Vec<(VirtualServer, SocketAddr)>;

fn read_kernel(family: Family) -> Result<(Found, Drained), SyncError> {
    let ipvs = Ipvs::open().map_err(kernel_error("ipvs"))?;
    let (mut found, mut drained) = (Found::new(), Drained::new());
    for (key, present) in ipvs.services(family).map_err(kernel_error("ipvs"))? {
        let reals = ipvs.reals(&key).map_err(kernel_error("ipvs"))?;
        let (serving, rest): (Vec<_>, Vec<_>) = reals.into_iter().partition(|(_, real)| real.weight > 0);
        drained.extend(rest.into_iter().map(|(real, _)| (key.clone(), real)));
        let reals = serving.into_iter().map(|(real, _)| real).collect();
        found.insert(
            key,
            (present.scheduler, VirtualServerOptions { affinity: present.persistent, is_bound: false, reals }),
        );
    }
    Ok((found, drained))
}

impl IpvsProxy {
    fn new(options: Options, config: Config) -> Self {
        let tables = Tables::new(&options);
        Self { options, config, tables, applied: None, draining: Draining::default(), is_prepared: false }
    }

    fn node(&self) -> NodeAddresses {
        let node_ports = match &self.options.environment.node_ports {
            NodePorts::All => device::addresses(self.options.family, false),
            NodePorts::Addresses(addresses) => {
                addresses.iter().copied().filter(|address| !address.is_loopback()).collect()
            }
        };
        NodeAddresses { node_ports, own: self.options.node_addresses.clone() }
    }

    /// Sets the kernel up for connections that its load balancer carries.
    async fn prepare(&mut self) -> Result<(), SyncError> {
        if self.is_prepared || self.options.dry_run.is_some() {
            return Ok(());
        }
        kernel::tune_ipvs(self.config.strict_arp);
        let timeouts = self.config.timeouts;
        blocking(move || Ipvs::open().and_then(|ipvs| ipvs.set_timeouts(timeouts)).map_err(kernel_error("ipvs")))
            .await?;
        self.is_prepared = true;
        Ok(())
    }

    /// Carries changes out: sets and rules first, so that no server answers without them.
    async fn write(&mut self, applied: &mut Applied, changes: Changes, all: bool) -> Result<(), SyncError> {
        let family = self.options.family;
        let text =
            if all { sets::replacement(family, &applied.members) } else { sets::changes(family, &changes.members) };
        match &self.options.dry_run {
            Some(script) => script.input("ipset restore -exist", &text),
            None => sets::restore(&text).await?,
        }
        let filled = applied.members.filled();
        if all || filled != applied.filled {
            self.write_rules(&filled, all).await?;
            applied.filled = filled;
        }
        let scheduler = self.config.scheduler.clone();
        if let Some(script) = &self.options.dry_run {
            let lines = changes.steps.iter().map(|step| step.command(&scheduler));
            lines.for_each(|(program, arguments)| {
                script.command(program, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
            });
            return Ok(());
        }
        if !all && changes.steps.is_empty() {
            return Ok(());
        }
        let device = blocking(move || carry_out(changes.steps, &scheduler, family)).await?;
        if !all && applied.device != Some(device) {
            let error = io::Error::other("the device was removed, and its addresses with it");
            return Err(SyncError::Kernel { what: device::NAME, error });
        }
        applied.device = Some(device);
        Ok(())
    }

    async fn write_rules(&self, filled: &BTreeSet<Set>, with_jumps: bool) -> Result<(), SyncError> {
        let mut batch = Batch::default();
        for ((table, chain), rules) in chains(filled, &self.options) {
            batch.write(table, chain, &rules);
        }
        self.tables.restore(&mut batch).await?;
        if with_jumps { self.tables.ensure_jumps(JUMPS.iter()).await } else { Ok(()) }
    }

    /// Brings everything to what is wanted, whatever is there.
    async fn write_all(&mut self, desired: &Desired) -> Result<Applied, SyncError> {
        self.prepare().await?;
        let family = self.options.family;
        let (found, drained) = match self.options.dry_run {
            Some(_) => Default::default(),
            None => blocking(move || read_kernel(family)).await?,
        };
        let mut applied = Applied { node: self.node(), ..Applied::default() };
        let mut draining = Draining::default();
        let mut changes = Changes::default();
        for (name, port) in &desired.ports {
            applied.put(name, Some(part(name, port, &applied.node)), &mut draining, &mut changes);
        }
        // Of the steps from nothing those for addresses stay; servers are compared with the kernel's.
        changes.steps.retain(|step| matches!(step, KernelStep::Bind(_)));
        for (key, claims) in &applied.servers {
            let wanted = claims.values().next();
            let known = found.get(key).filter(|(scheduler, _)| *scheduler == self.config.scheduler);
            if known.is_none()
                && let (Some((_, present)), Some(wanted)) = (found.get(key), wanted)
            {
                // The scheduler is another one; real servers stay.
                changes.steps.push(KernelStep::Serve(key.clone(), wanted.clone()));
                draining.change(
                    key,
                    Some(&VirtualServerOptions { affinity: wanted.affinity, ..present.clone() }),
                    Some(wanted),
                    &mut changes.steps,
                );
                continue;
            }
            draining.change(key, known.map(|(_, server)| server), wanted, &mut changes.steps);
        }
        let strangers = found.keys().filter(|key| !applied.servers.contains_key(*key));
        let removed = strangers.filter(|key| !self.config.excludes(key.address));
        changes.steps.extend(removed.map(|key| KernelStep::Remove(key.clone())));
        let bound = if self.options.dry_run.is_some() { BTreeSet::new() } else { device::addresses(family, true) };
        let bound = bound.into_iter().filter(|address| !self.config.excludes(*address));
        let wanted: BTreeSet<IpAddr> =
            applied.members.of(Set::IpvsIps).filter_map(|member| member.parse().ok()).collect();
        changes.steps.extend(bound.filter(|address| !wanted.contains(address)).map(KernelStep::Unbind));
        for (key, real) in drained {
            draining.resume(&key, real, applied.servers.get(&key).and_then(|claims| claims.values().next()));
        }
        self.draining = draining;
        self.write(&mut applied, changes, true).await?;
        Ok(applied)
    }

    /// Removes real servers whose connections have ended.
    async fn drain(&mut self) {
        let servers = self.draining.servers();
        if servers.is_empty() {
            return;
        }
        let read = blocking(move || {
            let ipvs = Ipvs::open().map_err(kernel_error("ipvs"))?;
            Ok(servers.into_iter().filter_map(|key| Some((ipvs.reals(&key).ok()?, key))).collect::<Vec<_>>())
        });
        let Ok(read) = read.await else { return };
        let mut steps = Vec::new();
        for (reals, key) in read {
            for (real, state) in reals {
                if state.connections == 0 && self.draining.has(&key, real) {
                    self.draining.gone(&key, real);
                    steps.push(KernelStep::RemoveReal(key.clone(), real));
                }
            }
        }
        if steps.is_empty() {
            return;
        }
        let (scheduler, family) = (self.config.scheduler.clone(), self.options.family);
        // One that is left behind by a failure is found by the next full sync.
        blocking(move || carry_out(steps, &scheduler, family)).await.ok();
    }

    /// Tries the scheduler with a virtual server for documentation's addresses, as upstream's `CanUseIPVSProxier`.
    fn try_scheduler(family: Family, scheduler: &str) -> Result<(), SyncError> {
        let address = match family {
            Family::V4 => IpAddr::from([198, 51, 100, 0]),
            Family::V6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0_u16]),
        };
        let ipvs = Ipvs::open().map_err(kernel_error("ipvs"))?;
        let key = VirtualServer { address, port: 20_000, protocol: Protocol::Tcp };
        let made = ipvs.set_service(&key, &VirtualServerOptions::default(), scheduler);
        made.and_then(|()| ipvs.delete_service(&key)).map_err(kernel_error("the IPVS scheduler"))
    }
}

#[async_trait]
impl Backend for IpvsProxy {
    async fn check_support(&self) -> Result<(), SyncError> {
        self.tables.check_support().await?;
        output("ipset", &["--version"], "").await?;
        let (family, scheduler) = (self.options.family, self.config.scheduler.clone());
        blocking(move || Self::try_scheduler(family, &scheduler)).await
    }

    async fn sync(&mut self, desired: &Desired, changed: &BTreeSet<PortName>) -> Result<SyncExtent, SyncError> {
        // After a failure what the kernel holds is unknown: the next sync writes everything.
        let (applied, written) = match self.applied.take() {
            Some(applied) if changed.is_empty() => (applied, SyncExtent::Nothing),
            Some(mut applied) => {
                let mut changes = Changes::default();
                for name in changed {
                    let part = desired.ports.get(name).map(|port| part(name, port, &applied.node));
                    applied.put(name, part, &mut self.draining, &mut changes);
                }
                self.write(&mut applied, changes, false).await?;
                (applied, SyncExtent::Changes)
            }
            None => (self.write_all(desired).await?, SyncExtent::Everything),
        };
        self.applied = Some(applied);
        Ok(written)
    }

    fn forget(&mut self) {
        self.applied = None;
    }

    fn set_environment(&mut self, environment: &Environment) {
        self.options.environment.clone_from(environment);
        // Addresses of the node come and go.
        if self.applied.as_ref().is_some_and(|applied| applied.node != self.node()) {
            self.forget();
        }
    }

    async fn tend(&mut self) -> bool {
        self.drain().await;
        let device = self.applied.as_ref().and_then(|applied| applied.device);
        let some = self.applied.as_ref().and_then(|applied| applied.servers.keys().next().cloned());
        let has_servers = match some {
            Some(key) => {
                blocking(move || Ok(Ipvs::open().and_then(|ipvs| ipvs.has_service(&key)).unwrap_or(true))).await
            }
            None => Ok(true),
        };
        has_servers.unwrap_or(true)
            && device::index() == device
            && self.tables.has_chain("filter", "KUBE-IPVS-FILTER").await
    }

    async fn is_present(&self) -> bool {
        device::index().is_some()
    }

    async fn clean_up(&mut self) -> Result<(), SyncError> {
        self.applied = None;
        let family = self.options.family;
        let servers = blocking(move || {
            let ipvs = Ipvs::open().map_err(kernel_error("ipvs"))?;
            for key in ipvs.services(family).map_err(kernel_error("ipvs"))?.keys() {
                ipvs.delete_service(key).map_err(kernel_error("ipvs"))?;
            }
            device::remove().map_err(kernel_error(device::NAME))
        });
        match servers.await {
            // A kernel without IPVS has nothing of it.
            Err(SyncError::Kernel { error, .. }) if error.raw_os_error() == Some(libc::ENOENT) => {}
            outcome => outcome?,
        }
        self.tables.remove_jumps(&JUMPS).await;
        self.tables.remove_chains(chains(&BTreeSet::new(), &self.options).into_keys()).await?;
        sets::destroy(family).await
    }
}

#[cfg(test)]
mod tests;
