//! Names of chains. Upstream's, so that either proxy takes over the other's rules: a prefix
//! and the first 16 base-32 digits of a SHA-256.

use crate::plan::{Endpoint, PortName};
use data_encoding::BASE32;
use sha2::{Digest, Sha256};

const DIGITS: usize = 16;

/// A chain for a service port: cluster policy (`SVC`), local policy (`SVL`), external
/// destinations (`EXT`) or source ranges (`FW`).
pub(super) fn service(kind: &str, name: &PortName) -> String {
    format!("KUBE-{kind}-{}", digest(&format!("{name}{}", name.protocol.as_str())))
}

/// The chain of one endpoint of a service port.
pub(super) fn endpoint(name: &PortName, endpoint: &Endpoint) -> String {
    format!("KUBE-SEP-{}", digest(&format!("{name}{}{endpoint}", name.protocol.as_str())))
}

/// Reports whether a chain belongs to a single service port.
pub(super) fn is_service_chain(chain: &str) -> bool {
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"].iter().any(|prefix| chain.starts_with(prefix))
}

fn digest(text: &str) -> String {
    BASE32.encode(&Sha256::digest(text))[..DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Protocol;

    #[test]
    fn names_are_upstreams() {
        let name = PortName {
            namespace: "default".into(),
            service: "kubernetes".into(),
            port: "https".into(),
            protocol: Protocol::Tcp,
        };
        let address = "192.0.2.10".parse().expect("ip");
        assert_eq!(service("SVC", &name), "KUBE-SVC-NPX46M4PTMTKRN6Y");
        assert_eq!(endpoint(&name, &Endpoint { address, port: 26443, local: false }), "KUBE-SEP-Y6Z3E3DZCUVWLI56");
    }
}
