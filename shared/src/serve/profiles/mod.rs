//! `/debug/pprof/`: where profilers look, unless `--profiling` is turned off; as far as there is something to show: the
//! page that lists what there is, the command line, and where the processor's time goes. Other profiles are of a Go
//! runtime, which there is not. Profiles name addresses: the program carries no symbols, so a profiler that is to name
//! functions has to be given the same program as it was before they were taken out.

mod pprof;
mod sampler;

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use actix_web::http::{StatusCode, header};
use actix_web::web::{self, Query, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::pages::plain;
use sampler::Sampling;

const ROOT: &str = "/debug/pprof/";
const INDEX: &str = "<html>\n<head><title>/debug/pprof/</title></head>\n<body>\n/debug/pprof/<br><br>\n\
    <a href='cmdline'>cmdline</a><br>\n<a href='profile?seconds=30'>profile</a>\n</body>\n</html>\n";
/// Default duration of a profile.
const SECONDS: u64 = 30;

/// The pages, at their paths.
pub fn profiler_pages(config: &mut ServiceConfig) {
    for path in ["/debug/pprof", "/debug/pprof/{profile:.*}"] {
        let page = |request: HttpRequest, query: Query<Vec<(String, String)>>| async move {
            let seconds = query.iter().find(|(key, _)| key == "seconds").map(|(_, value)| value.as_str());
            profile(request.path(), seconds).await
        };
        config.route(path, web::to(page));
    }
}

/// The page at a path; where it takes a while, for so many `seconds`.
pub async fn profile(path: &str, seconds: Option<&str>) -> HttpResponse {
    let Some(name) = path.strip_prefix(ROOT) else {
        return HttpResponse::Found().insert_header((header::LOCATION, ROOT)).finish();
    };
    match name {
        "" => HttpResponse::Ok().insert_header((header::CONTENT_TYPE, "text/html; charset=utf-8")).body(INDEX),
        "cmdline" => plain(StatusCode::OK, std::env::args().collect::<Vec<_>>().join("\0")),
        "profile" => processor(asked(seconds)).await,
        // No addresses of this program can be named.
        "symbol" => plain(StatusCode::OK, "num_symbols: 0\n".to_owned()),
        _ => plain(StatusCode::NOT_FOUND, "Unknown profile\n".to_owned()),
    }
}

/// Parses the duration of a profile; an invalid one is the default.
fn asked(seconds: Option<&str>) -> Duration {
    let seconds = seconds.and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    Duration::from_secs(seconds.unwrap_or(SECONDS))
}

/// Looks for a while at what the threads do.
async fn processor(time: Duration) -> HttpResponse {
    let start = SystemTime::now();
    let sampling = match Sampling::start() {
        Ok(sampling) => sampling,
        Err(why) => {
            let mut response =
                plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Could not enable CPU profiling: {why}\n"));
            response.headers_mut().insert(GO_PPROF, header::HeaderValue::from_static("1"));
            return response;
        }
    };
    tokio::time::sleep(time).await;
    let stacks = sampling.finish();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let encoded = pprof::encode(&stacks, &pprof::mappings(), start, time);
    match packed.write_all(&encoded).and_then(|()| packed.finish()) {
        Ok(body) => HttpResponse::Ok()
            .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
            .insert_header((header::CONTENT_TYPE, "application/octet-stream"))
            .insert_header((header::CONTENT_DISPOSITION, "attachment; filename=\"profile\""))
            .body(body),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Marks errors of profiles for those who fetch them.
const GO_PPROF: header::HeaderName = header::HeaderName::from_static("x-go-pprof");

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Instant;

    use super::*;

    #[test]
    fn time_asked_for() {
        for (text, seconds) in [(None, 30), (Some("2"), 2), (Some("0"), 30), (Some("-1"), 30), (Some("x"), 30)] {
            assert_eq!(asked(text).as_secs(), seconds, "{text:?}");
        }
    }

    #[inline(never)]
    fn busy(until: Instant) -> u64 {
        let mut value = 1_u64;
        while Instant::now() < until {
            for _ in 0..1000 {
                value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        }
        value
    }

    /// The one test that samples: only one may at a time.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_busy_thread_shows() {
        let first = Sampling::start().expect("nobody samples");
        let refused = profile("/debug/pprof/profile", Some("1")).await;
        assert_eq!((refused.status().as_u16(), refused.headers().contains_key("x-go-pprof")), (500, true));
        let body = actix_web::body::to_bytes(refused.into_body()).await.expect("a body");
        assert_eq!(body, "Could not enable CPU profiling: cpu profiling already in use\n");
        drop(first);

        let until = Instant::now() + Duration::from_millis(1500);
        let worker = std::thread::spawn(move || busy(until));
        let answer = profile("/debug/pprof/profile", Some("1")).await;
        worker.join().expect("no panic");
        let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        assert_eq!(header("content-type").as_deref(), Some("application/octet-stream"));
        assert_eq!(header("content-disposition").as_deref(), Some("attachment; filename=\"profile\""));
        let body = actix_web::body::to_bytes(answer.into_body()).await.expect("a body");
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut bytes).expect("gzip");
        let found = pprof::tests::read(&bytes);
        assert!(found.samples.iter().map(|(_, count, _)| count).sum::<i64>() > 10, "{found:?}");
        assert!(found.samples.iter().all(|(stack, count, time)| !stack.is_empty() && *time == count * 10_000_000));
        // Stacks begin where the time goes, and not in the sampler; some are of several frames.
        let busy = busy as fn(Instant) -> u64 as usize as u64;
        let code = busy..busy + 1024;
        let shows = |stack: &[u64]| stack.len() > 4 && stack.iter().take(4).any(|address| code.contains(address));
        assert!(found.samples.iter().any(|(stack, _, _)| shows(stack)), "{found:?}");
        assert!(found.outside.is_empty(), "addresses of no mapping: {found:?}");
    }
}
