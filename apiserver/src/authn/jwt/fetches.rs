//! Metrics of the issuers' key sets, behind `StructuredAuthenticationConfigurationJWKSMetrics`: time of the last fetch,
//! and hash of the keys.

use prometheus::GaugeVec;
use shared::metrics;

use crate::machinery::identity;
use crate::reloads::hashed;

/// Of one issuer.
pub(super) struct Fetches {
    last: GaugeVec,
    info: GaugeVec,
    issuer: String,
    server: String,
}

impl Fetches {
    pub(super) fn new(issuer: &str) -> Self {
        Self {
            last: metrics::gauge(
                "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds",
                "[ALPHA] Timestamp of the last successful or failed JWKS fetch split by result, api server identity and jwt issuer for the JWT authenticator.",
                &["apiserver_id_hash", "jwt_issuer_hash", "result"],
            ),
            info: metrics::gauge(
                "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info",
                "[ALPHA] Information about the last JWKS fetched by the JWT authenticator with hash as label, split by api server identity and jwt issuer.",
                &["apiserver_id_hash", "hash", "jwt_issuer_hash"],
            ),
            issuer: hashed(issuer.as_bytes()),
            server: hashed(identity::server_id().as_bytes()),
        }
    }

    /// Keys were fetched, or could not be.
    pub(super) fn record(&self, keys: Option<&[u8]>) {
        let result = if keys.is_some() { "success" } else { "failure" };
        let now = jiff::Timestamp::now().as_duration().as_secs_f64();
        self.last.with_label_values(&[&*self.server, &*self.issuer, result]).set(now);
        if let Some(keys) = keys {
            self.forget_keys();
            self.info.with_label_values(&[&*self.server, &*hashed(keys), &*self.issuer]).set(1.0);
        }
    }

    /// The issuer is gone.
    pub(super) fn remove(&self) {
        for result in ["success", "failure"] {
            // Never set is as good.
            self.last.remove_label_values(&[&*self.server, &*self.issuer, result]).ok();
        }
        self.forget_keys();
    }

    fn forget_keys(&self) {
        use prometheus::core::Collector as _;
        let label = |m: &prometheus::proto::Metric, name: &str| {
            m.get_label().iter().find(|l| l.name() == name).map(|l| l.value().to_owned()).unwrap_or_default()
        };
        for family in self.info.collect() {
            for metric in family.get_metric().iter().filter(|m| label(m, "jwt_issuer_hash") == self.issuer) {
                // Gone already is as good.
                self.info.remove_label_values(&[&*self.server, &*label(metric, "hash"), &*self.issuer]).ok();
            }
        }
    }
}
