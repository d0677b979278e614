//! Reasons why processors cannot be managed as configured, in upstream's words.

use crate::cpu_set::{CpuSet, InvalidSet};
use shared::flags::NumberError;
use std::io;
use std::path::PathBuf;

/// Reasons why the policy is not usable on this node.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// No policy of this name.
    #[error("unknown policy: {0:?}")]
    UnknownPolicy(String),
    /// The machine does not tell its processors.
    #[error("failed to detect the topology: {0}")]
    Topology(io::Error),
    /// An option is wrong.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The set of reserved processors cannot be read.
    #[error(transparent)]
    ReservedSet(#[from] InvalidSet),
    /// Nothing is reserved.
    #[error("[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")]
    NothingReserved,
    /// Another number of processors is reserved than of those that are there.
    #[error("[cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not equal {number})")]
    ReservedNumber {
        /// The processors that would be reserved.
        reserved: CpuSet,
        /// The number that shall be.
        number: usize,
    },
    /// A processor is reserved that there is not.
    #[error("[cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: {0}")]
    UnknownCpu(u32),
    /// The checkpoint cannot be used.
    #[error(
        "could not restore state from checkpoint: {cause}, please drain this node and delete the CPU manager \
         checkpoint file {:?} before restarting Kubelet",
        .file.display().to_string()
    )]
    Restore {
        /// The checkpoint.
        file: PathBuf,
        /// Cause.
        #[source]
        cause: CheckpointError,
    },
    /// The state was left on another machine, or with another reservation.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Options of the policy that are wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such option.
    #[error("unknown CPU Manager Policy option: {0:?}")]
    Unknown(String),
    /// The feature gate of its level is off.
    #[error("CPU Manager Policy {level}-level Options not enabled, but option {name:?} provided")]
    Disabled {
        /// `Alpha` or `Beta`.
        level: &'static str,
        /// The option.
        name: String,
    },
    /// A value that is no boolean.
    #[error("bad value for option {name:?}: {cause}")]
    Value {
        /// The option.
        name: String,
        /// Cause.
        #[source]
        cause: NumberError,
    },
    /// An option that is known and means nothing.
    #[error("unsupported cpumanager option: {name:?} ({value})")]
    Unsupported {
        /// The option.
        name: String,
        /// Value of it.
        value: String,
    },
    /// Two exclude each other.
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Exclusive(&'static str, &'static str),
    /// An option that excludes a policy of the topology manager.
    #[error("Topolgy manager single-numa-node policy is incompatible with CPUManager {0} policy option")]
    SingleNode(&'static str),
    /// An option that does not suit the machine.
    #[error("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA")]
    MoreSockets,
}

/// Checkpoints that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file is out of reach, or is no such document.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// Another policy has written it.
    #[error("configured policy {policy:?} differs from state checkpoint policy {known:?}")]
    OtherPolicy {
        /// The policy that is configured.
        policy: String,
        /// The policy of the checkpoint.
        known: String,
    },
    /// The checksum is that of other data.
    #[error("checkpoint is corrupted")]
    Corrupt,
    /// A set cannot be read.
    #[error(transparent)]
    Set(#[from] InvalidSet),
}

/// States that do not suit the machine or the reservation.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Nothing is shared.
    #[error("default cpuset cannot be empty")]
    NothingShared,
    /// Reserved processors are shared.
    #[error("some of strictly reserved cpus: {both:?} are present in defaultCpuSet: {shared:?}")]
    ReservedShared {
        /// Processors that are reserved and shared.
        both: String,
        /// Processors that are shared.
        shared: String,
    },
    /// Reserved processors are not shared.
    #[error("not all reserved cpus: {reserved:?} are present in defaultCpuSet: {shared:?}")]
    ReservedMissing {
        /// Processors that are reserved.
        reserved: String,
        /// Processors that are shared.
        shared: String,
    },
    /// A container's own processors are shared.
    #[error("pod: {uid}, container: {container} cpuset: {cpus:?} overlaps with default cpuset {shared:?}")]
    OwnShared {
        /// Uid of the pod.
        uid: String,
        /// Name of the container.
        container: String,
        /// Processors of the container.
        cpus: String,
        /// Processors that are shared.
        shared: String,
    },
    /// The machine has other processors.
    #[error("current set of available CPUs {usable:?} doesn't match with CPUs in state {known:?}")]
    OtherMachine {
        /// Processors that containers may run on.
        usable: String,
        /// Processors of the state.
        known: String,
    },
}

/// Reasons why a container gets no processors of its own.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TakeError {
    /// Too few processors.
    #[error("not enough cpus available to satisfy request: requested={number}, available={available}")]
    TooFew {
        /// Processors that are asked for.
        number: usize,
        /// Processors that are free.
        available: usize,
    },
    /// Processors that cannot be given out as planned.
    #[error("accounting error, not enough CPUs allocated, remaining: {0}")]
    Accounting(usize),
}
