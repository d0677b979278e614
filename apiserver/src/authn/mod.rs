//! Authenticators that need the apiserver's own knowledge: bearer tokens of all sorts. Certificates, front-proxy
//! headers and the anonymous user are in `shared::authn`. Answers for upstream's `pkg/kubeapiserver/authenticator`
//! (`Config.New`).
//!
//! In comes a token, out goes whom it stands for, or that it is of another sort. What a user may do is not asked here.

mod bearer;
mod bootstrap_tokens;
mod cache;
pub mod front_proxy;
pub mod jwt;
mod static_tokens;
mod webhook;

pub use bearer::{TOKEN_PROTOCOL, TokenAuthenticator, Tokens, constant_time_eq};
pub use bootstrap_tokens::BootstrapTokens;
pub use cache::Cached;
pub use front_proxy::FrontProxyHeaders;
pub use jwt::Jwt;
pub use static_tokens::{StaticTokens, TokenFileError};
pub use webhook::TokenWebhook;
