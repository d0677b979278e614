//! Settings of the topology manager that are wrong or do not suit the machine, in upstream's words.

use shared::flags::NumberError;

/// Reasons why the topology manager cannot work as configured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Options are set whose feature gate is off.
    #[error("topology manager policy options map[{options}] require feature gates \"{gate}\" enabled")]
    OptionsDisabled {
        /// The options, as Go prints them.
        options: String,
        /// The feature gate.
        gate: &'static str,
    },
    /// No policy of this name.
    #[error("unknown policy: \"{0}\"")]
    Policy(String),
    /// No scope of this name.
    #[error("unknown scope: \"{0}\"")]
    Scope(String),
    /// No option of this name.
    #[error("unknown Topology Manager Policy option: {0:?}")]
    Option(String),
    /// The value of an option is no boolean.
    #[error("bad value for option {name:?}: {cause}")]
    NotBool {
        /// The option.
        name: String,
        /// Cause.
        #[source]
        cause: NumberError,
    },
    /// The value of an option is no number.
    #[error("unable to convert policy option to integer {name:?}: {cause}")]
    NotNumber {
        /// The option.
        name: String,
        /// Cause.
        #[source]
        cause: NumberError,
    },
    /// The value of an option is less than this.
    #[error("the minimum value of {name:?} should not be less than {least}")]
    TooSmall {
        /// The option.
        name: String,
        /// The least value.
        least: usize,
    },
    /// The machine has more NUMA nodes than this.
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(usize),
    /// The machine does not tell distances.
    #[error("cannot discover NUMA topology: error getting NUMA distances from cadvisor")]
    NoDistances,
}
