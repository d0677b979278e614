//! Reasons why memory cannot be managed as configured, in upstream's words.

use std::io;
use std::path::PathBuf;

/// Reasons why the policy is not usable on this node.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// No policy of this name.
    #[error("unknown policy: {0:?}")]
    UnknownPolicy(String),
    /// The policy is for another operating system.
    #[error("policy {0:?} is not available for platform \"linux\"")]
    OtherPlatform(&'static str),
    /// The machine has more NUMA nodes than this.
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(usize),
    /// The reservations do not suit the machine.
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    /// The checkpoint cannot be used.
    #[error(
        "start memory manager error: could not restore state from checkpoint: {cause}, please drain this node and delete \
         the memory manager checkpoint file {:?} before restarting Kubelet",
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
    #[error("start memory manager error: {0}")]
    State(#[from] StateError),
}

/// Reservations that do not suit the machine.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// No memory is reserved for the system.
    #[error("[memorymanager] you should specify the system reserved memory")]
    Nothing,
    /// The machine has no such node.
    #[error("the reserved memory configuration references a NUMA node {0} that does not exist on this machine")]
    NoNode(i32),
    /// An amount is no number of bytes.
    #[error("could not covert a variable of type Quantity to int64")]
    Amount,
    /// The sums differ from what the node keeps from pods.
    #[error(
        "the total amount {sum:?} of type {kind:?} is not equal to the value {expected:?} determined by Node Allocatable \
         feature"
    )]
    Sum {
        /// Kind of memory.
        kind: String,
        /// Sum of the reservations.
        sum: String,
        /// Amount that the node keeps.
        expected: String,
    },
}

/// Checkpoints that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file is out of reach, or is no such document.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The checksum is that of other data.
    #[error("checkpoint is corrupted")]
    Corrupt,
    /// Another policy has written it.
    #[error("[memorymanager] configured policy {policy:?} differs from state checkpoint policy {known:?}")]
    OtherPolicy {
        /// The policy that is configured.
        policy: String,
        /// The policy of the checkpoint.
        known: String,
    },
}

/// States that do not suit the machine or the reservations.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Containers have memory of no machine.
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    NoMachine,
    /// A container has memory that the machine does not have.
    #[error("[memorymanager] (pod: {uid}, container: {container}) the memory assignment uses {what}")]
    Unknown {
        /// Uid of the pod.
        uid: String,
        /// Name of the container.
        container: String,
        /// Part that there is not.
        what: &'static str,
    },
    /// The machine is another one.
    #[error("[memorymanager] the expected machine state is different from the real one")]
    OtherMachine,
}
