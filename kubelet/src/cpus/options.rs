//! Options of the static policy: `cpuManagerPolicyOptions`.
//! Answers for upstream's `policy_options.go` of the CPU manager (`NewStaticPolicyOptions`).

use super::assignment::Level;
use super::error::OptionError;
use super::machine::Topology;
use crate::topology;
use shared::flags::{FeatureGates, parse_bool};
use std::collections::BTreeMap;

const WHOLE_CORES: &str = "full-pcpus-only";
const ACROSS_NODES: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT: &str = "strict-cpu-reservation";
const BY_CACHE: &str = "prefer-align-cpus-by-uncorecache";

/// Options of the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own for users")]
pub(super) struct Options {
    /// Containers with processors of their own share no core.
    pub(super) whole_cores: bool,
    /// Processors are taken evenly from NUMA nodes where one has not enough.
    pub(super) across_nodes: bool,
    /// Nodes of one socket are as good as one node.
    pub(super) align_by_socket: bool,
    /// Processors of one core go to one container as late as possible.
    pub(super) across_cores: bool,
    /// No container runs on the reserved ones.
    pub(super) strict_reservation: bool,
    /// Processors are taken from as few last-level caches as possible.
    pub(super) by_cache: bool,
}

/// Checks that an option is known and that its level's feature gate is on.
fn check(name: &str, gates: &FeatureGates) -> Result<(), OptionError> {
    let level = match name {
        WHOLE_CORES | STRICT => return Ok(()),
        ACROSS_NODES | BY_CACHE => "Beta",
        BY_SOCKET | ACROSS_CORES => "Alpha",
        _ => return Err(OptionError::Unknown(name.to_owned())),
    };
    if gates.enabled(&format!("CPUManagerPolicy{level}Options")) {
        return Ok(());
    }
    Err(OptionError::Disabled { level, name: name.to_owned() })
}

impl Options {
    /// Reads the options.
    ///
    /// # Errors
    /// An option that there is not or that is not enabled, a value that is none, or options that exclude each other;
    /// upstream's texts.
    pub(super) fn parse(options: &BTreeMap<String, String>, gates: &FeatureGates) -> Result<Self, OptionError> {
        let mut found = Self::default();
        for (name, value) in options {
            check(name, gates)?;
            let is_on = parse_bool(value).map_err(|cause| OptionError::Value { name: name.clone(), cause })?;
            match name.as_str() {
                WHOLE_CORES => found.whole_cores = is_on,
                ACROSS_NODES => found.across_nodes = is_on,
                BY_SOCKET => found.align_by_socket = is_on,
                ACROSS_CORES => found.across_cores = is_on,
                STRICT => found.strict_reservation = is_on,
                BY_CACHE => found.by_cache = is_on,
                _ => return Err(OptionError::Unsupported { name: name.clone(), value: value.clone() }),
            }
        }
        for (are_both, one, other) in [
            (found.whole_cores && found.across_cores, WHOLE_CORES, ACROSS_CORES),
            (found.across_nodes && found.across_cores, ACROSS_NODES, ACROSS_CORES),
            (found.by_cache && found.across_cores, BY_CACHE, ACROSS_CORES),
            (found.by_cache && found.across_nodes, BY_CACHE, ACROSS_NODES),
        ] {
            if are_both {
                return Err(OptionError::Exclusive(one, other));
            }
        }
        Ok(found)
    }

    /// Checks that the options suit the machine and the topology manager's policy. Upstream's `ValidateStaticPolicyOptions`.
    ///
    /// # Errors
    /// They do not; upstream's texts.
    pub(super) fn suit(self, machine: &Topology, policy: topology::TopologyPolicy) -> Result<(), OptionError> {
        if !self.align_by_socket {
            return Ok(());
        }
        if policy == topology::TopologyPolicy::SingleNumaNode {
            return Err(OptionError::SingleNode(BY_SOCKET));
        }
        if machine.count(Level::Socket) > machine.count(Level::Node) {
            return Err(OptionError::MoreSockets);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::shape;
    use super::*;

    fn parse(options: &[(&str, &str)], gates: &[(&str, bool)]) -> Result<Options, OptionError> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let gates = gates.iter().map(|(name, is_on)| ((*name).to_owned(), *is_on)).collect();
        Options::parse(&options, &FeatureGates::default().with(&gates).expect("gates"))
    }

    #[test]
    fn options_are_known_or_refused() {
        let alpha = [("CPUManagerPolicyAlphaOptions", true)];
        let no_beta = [("CPUManagerPolicyBetaOptions", false)];
        assert_eq!(parse(&[(WHOLE_CORES, "true")], &[]), Ok(Options { whole_cores: true, ..Options::default() }));
        assert_eq!(parse(&[(BY_CACHE, "1")], &[]), Ok(Options { by_cache: true, ..Options::default() }));
        assert_eq!(parse(&[(BY_SOCKET, "t")], &alpha), Ok(Options { align_by_socket: true, ..Options::default() }));
        let both = |one: &str, other: &str| {
            format!("static policy options {one} and {other} can not be used at the same time")
        };
        for (options, gates, expected) in [
            (&[("magic", "true")][..], &[][..], "unknown CPU Manager Policy option: \"magic\"".to_owned()),
            (
                &[(BY_SOCKET, "false")],
                &[],
                "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided".to_owned(),
            ),
            (
                &[(ACROSS_NODES, "true")],
                &no_beta,
                "CPU Manager Policy Beta-level Options not enabled, but option \"distribute-cpus-across-numa\" provided"
                    .to_owned(),
            ),
            (
                &[(WHOLE_CORES, "maybe")],
                &[],
                "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"maybe\": invalid syntax".to_owned(),
            ),
            (&[(WHOLE_CORES, "true"), (ACROSS_CORES, "true")], &alpha, both(WHOLE_CORES, ACROSS_CORES)),
            (&[(ACROSS_NODES, "true"), (ACROSS_CORES, "true")], &alpha, both(ACROSS_NODES, ACROSS_CORES)),
            (&[(BY_CACHE, "true"), (ACROSS_CORES, "true")], &alpha, both(BY_CACHE, ACROSS_CORES)),
            (&[(BY_CACHE, "true"), (ACROSS_NODES, "true")], &[], both(BY_CACHE, ACROSS_NODES)),
        ] {
            assert_eq!(parse(options, gates).expect_err(&expected).to_string(), expected);
        }
    }

    #[test]
    fn sockets_are_aligned_to_only_where_they_hold_nodes() {
        let options = Options { align_by_socket: true, ..Options::default() };
        let (large, odd) = (shape([2, 4, 8, 1, 0]), shape([4, 2, 8, 1, 0]));
        assert_eq!(options.suit(&large, topology::TopologyPolicy::Restricted), Ok(()));
        assert_eq!(options.suit(&odd, topology::TopologyPolicy::None), Err(OptionError::MoreSockets));
        let single = options.suit(&large, topology::TopologyPolicy::SingleNumaNode);
        assert_eq!(single, Err(OptionError::SingleNode(BY_SOCKET)), "they exclude each other");
        assert_eq!(Options::default().suit(&odd, topology::TopologyPolicy::SingleNumaNode), Ok(()));
    }
}
