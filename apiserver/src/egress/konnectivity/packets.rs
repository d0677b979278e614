//! Packets of a call: the messages of `konnectivity-client/proto/client`, by field number.

use bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Packet {
    #[prost(enumeration = "PacketType", tag = "1")]
    pub(super) kind: i32,
    #[prost(oneof = "Payload", tags = "2, 3, 4, 5, 6, 7")]
    pub(super) payload: Option<Payload>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum PacketType {
    DialRequest = 0,
    DialResponse = 1,
    CloseRequest = 2,
    CloseResponse = 3,
    Data = 4,
    CloseDial = 5,
    Drain = 6,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Payload {
    #[prost(message, tag = "2")]
    DialRequest(DialRequest),
    #[prost(message, tag = "3")]
    DialResponse(DialResponse),
    #[prost(message, tag = "4")]
    Data(Data),
    #[prost(message, tag = "5")]
    CloseRequest(CloseRequest),
    #[prost(message, tag = "6")]
    CloseResponse(CloseResponse),
    #[prost(message, tag = "7")]
    CloseDial(CloseDial),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DialRequest {
    #[prost(string, tag = "1")]
    pub(super) protocol: String,
    #[prost(string, tag = "2")]
    pub(super) address: String,
    #[prost(int64, tag = "3")]
    pub(super) random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DialResponse {
    #[prost(string, tag = "1")]
    pub(super) error: String,
    #[prost(int64, tag = "2")]
    pub(super) connect_id: i64,
    #[prost(int64, tag = "3")]
    pub(super) random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CloseRequest {
    #[prost(int64, tag = "1")]
    pub(super) connect_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CloseResponse {
    #[prost(string, tag = "1")]
    pub(super) error: String,
    #[prost(int64, tag = "2")]
    pub(super) connect_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CloseDial {
    #[prost(int64, tag = "1")]
    pub(super) random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Data {
    #[prost(int64, tag = "1")]
    pub(super) connect_id: i64,
    #[prost(string, tag = "2")]
    pub(super) error: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) data: Bytes,
}

impl From<Payload> for Packet {
    fn from(payload: Payload) -> Self {
        let kind = match &payload {
            Payload::DialRequest(_) => PacketType::DialRequest,
            Payload::DialResponse(_) => PacketType::DialResponse,
            Payload::Data(_) => PacketType::Data,
            Payload::CloseRequest(_) => PacketType::CloseRequest,
            Payload::CloseResponse(_) => PacketType::CloseResponse,
            Payload::CloseDial(_) => PacketType::CloseDial,
        };
        Self { kind: kind.into(), payload: Some(payload) }
    }
}

impl Packet {
    /// Kind of the packet as metrics name it.
    pub(super) fn name(&self) -> &'static str {
        match PacketType::try_from(self.kind) {
            Ok(PacketType::DialRequest) => "DIAL_REQ",
            Ok(PacketType::DialResponse) => "DIAL_RSP",
            Ok(PacketType::CloseRequest) => "CLOSE_REQ",
            Ok(PacketType::CloseResponse) => "CLOSE_RSP",
            Ok(PacketType::Data) => "DATA",
            Ok(PacketType::CloseDial) => "DIAL_CLS",
            Ok(PacketType::Drain) => "DRAIN",
            Err(_) => "Unknown",
        }
    }
}
