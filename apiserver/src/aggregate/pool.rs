//! Kept connections that show who the server is: with another pair begins another lot of them. Those of the pair before
//! end when nobody uses them.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use shared::cert::ReloadingKey;

/// A client that is opened anew when the pair it shows was replaced.
pub(super) struct Pool<C> {
    open: Box<dyn Fn() -> C + Send + Sync>,
    pair: Option<Arc<ReloadingKey>>,
    now: Mutex<(C, Option<Arc<CertifiedKey>>)>,
}

impl<C: Clone> Pool<C> {
    pub(super) fn new(pair: Option<Arc<ReloadingKey>>, open: impl Fn() -> C + Send + Sync + 'static) -> Self {
        let shown = pair.as_ref().and_then(|pair| pair.current());
        Self { now: Mutex::new((open(), shown)), pair, open: Box::new(open) }
    }

    /// The client to ask with now.
    pub(super) fn client(&self) -> C {
        let shown = self.pair.as_ref().and_then(|pair| pair.current());
        let mut now = self.now.lock();
        let same = match (&now.1, &shown) {
            (Some(before), Some(shown)) => Arc::ptr_eq(before, shown),
            _ => true,
        };
        if !same {
            *now = ((self.open)(), shown);
        }
        now.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use shared::cert::self_signed;

    use super::*;

    #[test]
    fn another_pair_is_shown_on_other_connections() {
        let pair = || self_signed("proxy", &[], &[]).expect("a pair");
        let shown = Arc::new(ReloadingKey::from_pem(&pair()).expect("a key"));
        let opened = AtomicU32::new(0);
        let pool = Pool::new(Some(shown.clone()), move || opened.fetch_add(1, Ordering::Relaxed));
        assert_eq!((pool.client(), pool.client()), (0, 0));
        shown.replace(&pair()).expect("replaced");
        assert_eq!((pool.client(), pool.client()), (1, 1));
        let nobody = Pool::new(None, || "plain");
        assert_eq!((nobody.client(), nobody.client()), ("plain", "plain"));
    }
}
