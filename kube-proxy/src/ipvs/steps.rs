//! Changes of the kernel's servers that lead from what it has to what is wanted. Pure.
//!
//! A real server of a TCP service that is not wanted any more gets no new connections (weight 0) and goes when its
//! connections have ended; of other protocols it goes at once. Upstream's `graceful_termination.go`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::render::{VirtualServer, VirtualServerOptions};
use crate::plan::Protocol;

/// A change of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KernelStep {
    /// Puts an address on the device, unless another device has it.
    Bind(IpAddr),
    /// Takes an address off the device.
    Unbind(IpAddr),
    /// Adds a virtual server or changes it.
    Serve(VirtualServer, VirtualServerOptions),
    /// Removes a virtual server with its real ones.
    Remove(VirtualServer),
    /// Adds a real server or changes its weight.
    SetReal(VirtualServer, SocketAddr, u32),
    /// Removes a real server.
    RemoveReal(VirtualServer, SocketAddr),
}

impl KernelStep {
    /// The command that does it: program and arguments.
    pub(super) fn command(&self, scheduler: &str) -> (&'static str, Vec<String>) {
        let address = |verb: &str, address: &IpAddr| {
            let words = ["address", verb, &address.to_string(), "dev", super::device::NAME];
            ("ip", words.map(str::to_owned).to_vec())
        };
        let server = |verb: &str, key: &VirtualServer| {
            let service = SocketAddr::new(key.address, key.port).to_string();
            vec![format!("--{verb}"), format!("--{}-service", key.protocol.as_str()), service]
        };
        let real = |verb: &str, key: &VirtualServer, real: &SocketAddr| {
            [server(verb, key), vec!["--real-server".to_owned(), real.to_string()]].concat()
        };
        match self {
            Self::Bind(at) => address("add", at),
            Self::Unbind(at) => address("delete", at),
            Self::Serve(key, wanted) => {
                let persistent = wanted.affinity.map(|seconds| ["--persistent".to_owned(), seconds.to_string()]);
                let scheduler = ["--scheduler".to_owned(), scheduler.to_owned()];
                let words = server("add-service", key).into_iter().chain(scheduler);
                ("ipvsadm", words.chain(persistent.into_iter().flatten()).collect())
            }
            Self::Remove(key) => ("ipvsadm", server("delete-service", key)),
            Self::SetReal(key, at, weight) => {
                let more = ["--masquerading".to_owned(), "--weight".to_owned(), weight.to_string()];
                ("ipvsadm", real("add-server", key, at).into_iter().chain(more).collect())
            }
            Self::RemoveReal(key, at) => ("ipvsadm", real("delete-server", key, at)),
        }
    }
}

/// Real servers that wait for their connections to end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Draining(BTreeSet<(VirtualServer, SocketAddr)>);

impl Draining {
    /// Steps from one state of a virtual server to the next; `before` holds what the kernel has.
    pub(super) fn change(
        &mut self,
        key: &VirtualServer,
        before: Option<&VirtualServerOptions>,
        after: Option<&VirtualServerOptions>,
        steps: &mut Vec<KernelStep>,
    ) {
        let Some(after) = after else {
            if before.is_some() {
                self.0.retain(|(of, _)| of != key);
                steps.push(KernelStep::Remove(key.clone()));
            }
            return;
        };
        if before.is_none_or(|before| before.affinity != after.affinity) {
            steps.push(KernelStep::Serve(key.clone(), after.clone()));
        }
        let none = BTreeSet::new();
        let had = before.map_or(&none, |before| &before.reals);
        for real in after.reals.difference(had) {
            self.0.remove(&(key.clone(), *real));
            steps.push(KernelStep::SetReal(key.clone(), *real, 1));
        }
        for real in had.difference(&after.reals) {
            match key.protocol {
                Protocol::Tcp => {
                    self.0.insert((key.clone(), *real));
                    steps.push(KernelStep::SetReal(key.clone(), *real, 0));
                }
                Protocol::Udp | Protocol::Sctp => steps.push(KernelStep::RemoveReal(key.clone(), *real)),
            }
        }
    }

    /// Takes in a real server that the kernel has with weight 0 and that is not wanted.
    pub(super) fn resume(&mut self, key: &VirtualServer, real: SocketAddr, wanted: Option<&VirtualServerOptions>) {
        if wanted.is_some_and(|wanted| !wanted.reals.contains(&real)) {
            self.0.insert((key.clone(), real));
        }
    }

    /// Virtual servers with real ones that wait.
    pub(super) fn servers(&self) -> BTreeSet<VirtualServer> {
        self.0.iter().map(|(key, _)| key.clone()).collect()
    }

    /// Reports whether a real server waits.
    pub(super) fn has(&self, key: &VirtualServer, real: SocketAddr) -> bool {
        self.0.contains(&(key.clone(), real))
    }

    /// Forgets a real server that is gone.
    pub(super) fn gone(&mut self, key: &VirtualServer, real: SocketAddr) {
        self.0.remove(&(key.clone(), real));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn server(reals: &[&str]) -> VirtualServerOptions {
        VirtualServerOptions { affinity: None, is_bound: true, reals: reals.iter().map(|real| at(real)).collect() }
    }

    fn key(protocol: Protocol) -> VirtualServer {
        VirtualServer { address: "10.96.0.5".parse().expect("ip"), port: 80, protocol }
    }

    fn steps(
        draining: &mut Draining,
        protocol: Protocol,
        before: Option<&VirtualServerOptions>,
        after: Option<&VirtualServerOptions>,
    ) -> Vec<KernelStep> {
        let mut steps = Vec::new();
        draining.change(&key(protocol), before, after, &mut steps);
        steps
    }

    #[test]
    fn tcp_servers_drain_and_come_back_and_others_go_at_once() {
        let (two, one) = (server(&["10.1.0.1:80", "10.1.0.2:80"]), server(&["10.1.0.1:80"]));
        let gone = at("10.1.0.2:80");
        for (protocol, expected) in [
            (Protocol::Tcp, KernelStep::SetReal(key(Protocol::Tcp), gone, 0)),
            (Protocol::Udp, KernelStep::RemoveReal(key(Protocol::Udp), gone)),
            (Protocol::Sctp, KernelStep::RemoveReal(key(Protocol::Sctp), gone)),
        ] {
            let mut draining = Draining::default();
            assert_eq!(steps(&mut draining, protocol, Some(&two), Some(&one)), [expected]);
            assert_eq!(draining.has(&key(protocol), gone), protocol == Protocol::Tcp);
            let back = steps(&mut draining, protocol, Some(&one), Some(&two));
            assert_eq!(back, [KernelStep::SetReal(key(protocol), gone, 1)]);
            assert_eq!(draining, Draining::default());
        }
    }

    #[test]
    fn servers_come_with_their_reals_and_go_whole() {
        let mut draining = Draining::default();
        let one = server(&["10.1.0.1:80"]);
        let key = key(Protocol::Tcp);
        let made = steps(&mut draining, Protocol::Tcp, None, Some(&one));
        assert_eq!(
            made,
            [KernelStep::Serve(key.clone(), one.clone()), KernelStep::SetReal(key.clone(), at("10.1.0.1:80"), 1)]
        );
        steps(&mut draining, Protocol::Tcp, Some(&one), Some(&server(&[])));
        assert_eq!(draining.servers(), [key.clone()].into());
        assert_eq!(steps(&mut draining, Protocol::Tcp, Some(&one), None), [KernelStep::Remove(key)]);
        assert_eq!(draining, Draining::default());
        assert!(steps(&mut draining, Protocol::Tcp, None, None).is_empty());
    }

    #[test]
    fn affinity_that_changes_is_written() {
        let mut draining = Draining::default();
        let (plain, sticky) = (server(&[]), VirtualServerOptions { affinity: Some(60), ..server(&[]) });
        let written = steps(&mut draining, Protocol::Tcp, Some(&plain), Some(&sticky));
        assert_eq!(written, [KernelStep::Serve(key(Protocol::Tcp), sticky)]);
    }
}
