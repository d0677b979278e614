//! What all five components share: flags, serving, client, informers, access chains

pub mod authn;
pub mod authz;
pub mod cert;
pub mod status;
pub mod types;
pub mod flags;
pub mod metrics;
pub mod run;
pub mod version;
