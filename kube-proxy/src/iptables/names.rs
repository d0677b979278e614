//! Names of chains. Upstream's, so that either proxy takes over the other's rules: a prefix
//! and the first 16 base-32 digits of a SHA-256.

use crate::plan::{Endpoint, PortName};
use sha2::{Digest, Sha256};

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
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

/// Whether a chain is one that belongs to a single service port.
pub(super) fn is_service_chain(chain: &str) -> bool {
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"].iter().any(|prefix| chain.starts_with(prefix))
}

fn digest(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    let mut digits = String::with_capacity(DIGITS);
    let (mut bits, mut held) = (0u32, 0);
    for byte in hash {
        bits = (bits << 8) | u32::from(byte);
        held += 8;
        while held >= 5 && digits.len() < DIGITS {
            held -= 5;
            digits.push(char::from(ALPHABET[(bits >> held) as usize & 31]));
        }
    }
    digits
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
