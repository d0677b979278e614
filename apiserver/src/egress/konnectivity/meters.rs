//! Metrics of calls and packets, under the names of Konnectivity's own client.

use prometheus::{CounterVec, GaugeVec};
use shared::{grpc, metrics};

/// From where to where a packet goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Segment {
    FromClient,
    ToClient,
}

impl Segment {
    fn name(self) -> &'static str {
        match self {
            Self::FromClient => "from_client",
            Self::ToClient => "to_client",
        }
    }
}

/// Counts a packet.
pub(super) fn packet(segment: Segment, kind: &str) {
    let packets = metrics::counter(
        "konnectivity_network_proxy_client_stream_packets_total",
        "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)",
        &["packet_type", "segment"],
    );
    packets.with_label_values(&[kind, segment.name()]).inc();
}

/// Counts a call that broke while it was listened to.
pub(super) fn broke(code: tonic::Code) {
    let errors = metrics::counter(
        "konnectivity_network_proxy_client_stream_errors_total",
        "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)",
        &["code", "packet_type", "segment"],
    );
    errors.with_label_values(&[grpc::name(code), "Unknown", Segment::ToClient.name()]).inc();
}

/// Counts a dial that failed.
pub(super) fn failed(reason: &str) {
    dial_failures().with_label_values(&[reason]).inc();
}

fn dial_failures() -> CounterVec {
    metrics::counter(
        "konnectivity_network_proxy_client_dial_failure_total",
        "Number of dial failures observed, by reason (example: remote endpoint error)",
        &["reason"],
    )
}

/// A connection that is counted by how far it is, until it ends.
#[derive(Debug)]
pub(super) struct CountedConnection(&'static str);

impl CountedConnection {
    pub(super) fn dialing() -> Self {
        let mut counted = Self("created");
        connections().with_label_values(&[counted.0]).inc();
        counted.is("dialing");
        counted
    }

    pub(super) fn established(&mut self) {
        self.is("ok");
    }

    fn is(&mut self, status: &'static str) {
        let connections = connections();
        connections.with_label_values(&[self.0]).dec();
        connections.with_label_values(&[status]).inc();
        self.0 = status;
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        connections().with_label_values(&[self.0]).dec();
    }
}

fn connections() -> GaugeVec {
    metrics::gauge(
        "konnectivity_network_proxy_client_client_connections",
        "Number of open client connections, by status (Example: dialing)",
        &["status"],
    )
}
