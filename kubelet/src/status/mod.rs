//! Pod status: computed here from the pod, the runtime's state and probe results ([`generate`]; pure), and written
//! to the API server by [`writer`].

pub mod conditions;
pub mod containers;
pub mod generate;
pub mod patch;
pub mod writer;
