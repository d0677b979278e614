//! `grpc_client_*`: calls to etcd, as upstream's client of gRPC counts them.

use std::sync::OnceLock;

use etcd_client::{WatchResponse, WatchStream};
use shared::grpc;
use shared::metrics::{self, Counter};
use tonic::Code;

/// RPC of etcd.
#[derive(Clone, Copy, Debug)]
pub(super) enum EtcdCall {
    Range,
    Txn,
    Compact,
    LeaseGrant,
    Status,
    Watch,
}

/// Service, method and type of each.
const CALLS: [[&str; 3]; 6] = [
    ["etcdserverpb.KV", "Range", "unary"],
    ["etcdserverpb.KV", "Txn", "unary"],
    ["etcdserverpb.KV", "Compact", "unary"],
    ["etcdserverpb.Lease", "LeaseGrant", "unary"],
    ["etcdserverpb.Maintenance", "Status", "unary"],
    ["etcdserverpb.Watch", "Watch", "bidi_stream"],
];

/// A call's counters.
struct CallCounters {
    started: Counter,
    sent: Counter,
    received: Counter,
    /// The usual end.
    fine: OnceLock<Counter>,
}

impl EtcdCall {
    fn counts(self) -> &'static CallCounters {
        static ALL: [OnceLock<CallCounters>; CALLS.len()] = [const { OnceLock::new() }; CALLS.len()];
        ALL[self as usize].get_or_init(|| {
            let [service, method, kind] = CALLS[self as usize];
            let of = |name: &str, help: &str| {
                let labels = ["grpc_method", "grpc_service", "grpc_type"];
                metrics::counter(name, help, &labels).with_label_values(&[method, service, kind])
            };
            CallCounters {
                started: of("grpc_client_started_total", "Calls of gRPC that were begun."),
                sent: of("grpc_client_msg_sent_total", "Messages of gRPC that were sent."),
                received: of("grpc_client_msg_received_total", "Messages of gRPC that were received."),
                fine: OnceLock::new(),
            }
        })
    }

    fn handled(self, code: Code) {
        let [service, method, kind] = CALLS[self as usize];
        let of = |code: &str| {
            let labels = ["grpc_code", "grpc_method", "grpc_service", "grpc_type"];
            let help = "Calls of gRPC that have ended, however they did.";
            metrics::counter("grpc_client_handled_total", help, &labels)
                .with_label_values(&[code, method, service, kind])
        };
        match code {
            Code::Ok => self.counts().fine.get_or_init(|| of("OK")).inc(),
            other => of(grpc::name(other)).inc(),
        }
    }

    /// A call begins.
    pub(super) fn begin(self) {
        let counts = self.counts();
        counts.started.inc();
        counts.sent.inc();
    }

    /// Records the result of a call.
    pub(super) fn end(self, code: Code) {
        if code == Code::Ok {
            self.counts().received.inc();
        }
        self.handled(code);
    }
}

/// The code of an error.
pub(super) fn code(error: &etcd_client::Error) -> Code {
    match error {
        etcd_client::Error::GRpcStatus(status) => status.code(),
        etcd_client::Error::TransportError(_) => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// A watch. It is over when it is dropped.
pub struct Watch {
    stream: WatchStream,
    ended: Code,
}

impl Watch {
    pub(super) fn new(stream: WatchStream) -> Self {
        Self { stream, ended: Code::Cancelled }
    }

    /// Reads the next response of the watch; `None` when etcd ends it.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn message(&mut self) -> Result<Option<WatchResponse>, etcd_client::Error> {
        let next = self.stream.message().await;
        match &next {
            Ok(Some(_)) => EtcdCall::Watch.counts().received.inc(),
            Ok(None) => self.ended = Code::Ok,
            Err(error) => self.ended = code(error),
        }
        next
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        EtcdCall::Watch.handled(self.ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_under_upstreams_names() {
        for code in [Code::Ok, Code::Ok, Code::Cancelled, Code::DeadlineExceeded] {
            EtcdCall::Compact.begin();
            EtcdCall::Compact.end(code);
        }
        let text = metrics::gather();
        let of = "grpc_method=\"Compact\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"";
        for line in [
            format!("grpc_client_started_total{{{of}}} 4"),
            format!("grpc_client_msg_sent_total{{{of}}} 4"),
            format!("grpc_client_msg_received_total{{{of}}} 2"),
            format!("grpc_client_handled_total{{grpc_code=\"OK\",{of}}} 2"),
            format!("grpc_client_handled_total{{grpc_code=\"Canceled\",{of}}} 1"),
            format!("grpc_client_handled_total{{grpc_code=\"DeadlineExceeded\",{of}}} 1"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
