//! Answers on connections that are handed over: they are sent unchanged.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;

/// An answer on a connection that is not HTTP's any more, or is as good as that.
struct HandedOver;

/// Marks an answer that leaves as the other side, or the WebSocket library, has it: nothing is added to it.
pub(crate) fn handed_over(mut response: HttpResponse) -> HttpResponse {
    response.extensions_mut().insert(HandedOver);
    response
}

/// Reports whether a response is sent unchanged: its connection is handed over.
pub(crate) fn is_handed_over(response: &HttpResponse) -> bool {
    response.status() == StatusCode::SWITCHING_PROTOCOLS || response.extensions().get::<HandedOver>().is_some()
}
