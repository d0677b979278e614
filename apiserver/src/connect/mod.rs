//! Requests that end at a kubelet, a pod or a service instead of in etcd: logs, exec, attach, port-forward, proxy.
//! Answers for upstream's `pkg/registry/core/{pod`,node,service}/rest (`Connecter`).
//!
//! In: a request that access has let pass. Out: a response whose bytes come from elsewhere, or a connection that has
//! switched protocols and is carried from then on. Old clients speak SPDY/3.1, which passes through unchanged; new
//! ones speak WebSocket, which is translated ([`translate`]) or unpacked ([`tunnel`]). Objects are only read here.

mod channels;
mod ended;
pub mod frames;
mod handed_over;
mod handshake;
mod kubelet;
mod logs;
mod messages;
mod meters;
mod pages;
mod pods;
mod proxy;
mod resize;
pub mod spdy;
mod throttle;
mod translate;
mod transport;
mod tunnel;
mod watch;

use actix_web::{HttpRequest, HttpResponse, web};
use shared::flags::FlagSet;
use shared::status::Status;

use crate::api::{Api, RequestInfo};
use crate::authn::FrontProxyHeaders;
use crate::egress::Egress;
use crate::machinery::GroupResource;
use crate::registry::core::node::NODES;
use crate::registry::core::pod::PODS;
use crate::registry::core::service::SERVICES;
pub(crate) use handed_over::{handed_over, is_handed_over};
use kubelet::Kubelets;
pub(crate) use pages::{Links, ask_packed, forward, led_back};
pub(crate) use pods::carried;
pub(crate) use throttle::BandwidthLimit;
pub(crate) use transport::{HOP_BY_HOP, Origin, body, forwarded, forwarded_for};
pub use watch::{wants_messages, watch};

/// The room's door.
pub struct Connect {
    api: Api,
    kubelets: Kubelets,
    /// `PodLogsQuerySplitStreams`
    splits_logs: bool,
    front_proxy: FrontProxyHeaders,
    /// In which form kubelets hear of sessions over WebSocket.
    form: pods::Forms,
    /// Bandwidth limit of a connection.
    limit: BandwidthLimit,
}

/// Arguments that all handlers of a request share.
struct Call<'a> {
    request: &'a HttpRequest,
    info: &'a RequestInfo,
    payload: web::Payload,
}

impl Connect {
    /// Reads the certificates for kubelets.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn new(flags: &FlagSet, api: Api, egress: Egress) -> anyhow::Result<Self> {
        Ok(Self {
            api,
            kubelets: Kubelets::new(flags, egress)?,
            splits_logs: flags.enabled("PodLogsQuerySplitStreams"),
            front_proxy: FrontProxyHeaders::from_flags(flags),
            form: pods::Forms::from_flags(flags),
            limit: BandwidthLimit::from_flags(flags),
        })
    }

    /// Reports whether a request is for a connect subresource that is served here.
    pub fn takes(info: &RequestInfo) -> bool {
        if !info.is_resource || !info.api_group.is_empty() || info.name.is_empty() {
            return false;
        }
        match GroupResource::new(&info.api_group, &info.resource) {
            PODS => matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy" | "log"),
            SERVICES | NODES => info.subresource == "proxy",
            _ => false,
        }
    }

    /// Serves one.
    ///
    /// # Errors
    /// The object does not allow it, or what stands behind it cannot be reached.
    pub async fn handle(
        &self,
        request: &HttpRequest,
        payload: web::Payload,
        info: &RequestInfo,
    ) -> Result<HttpResponse, Status> {
        let call = Call { request, info, payload };
        match (GroupResource::new(&info.api_group, &info.resource), info.subresource.as_str()) {
            (PODS, "log") => self.log(call).await,
            (PODS, "exec") => self.stream(call, pods::StreamKind::Exec).await,
            (PODS, "attach") => self.stream(call, pods::StreamKind::Attach).await,
            (PODS, "portforward") => self.stream(call, pods::StreamKind::PortForward).await,
            _ => self.proxy(call).await,
        }
    }
}
