//! Service-account tokens: issuing them ([`Issuer`]), believing them ([`Validator`]) and telling others how to
//! believe them (discovery document and key set). Answers for upstream's `serviceaccount` package and its
//! TokenRequest storage. Keys stay in here.

mod claims;
mod external;
mod issuer;
mod keys;
mod service_accounts;
mod validator;

pub use claims::{Bound, Claims, LegacyClaims};
pub use issuer::Issuer;
pub use keys::{KeyError, PublicKey, SigningKey};
pub use service_accounts::{Config, Error, ServiceAccounts, user_name};
pub use validator::Validator;
