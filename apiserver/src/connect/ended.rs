//! End of a command: the kubelet's status on the error stream, and the status for the client of a WebSocket. Pure.

use proto::json;
use serde::Deserialize;
use shared::status::{Details, Status, go_quote};

const NON_ZERO: &str = "NonZeroExitCode";
const EXIT_CODE: &str = "ExitCode";

/// Status of the kubelet; any part may be missing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct KubeletStatus {
    status: String,
    message: String,
    reason: String,
    details: Option<Details>,
}

/// Status for the client, and the code it is counted under.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandEnd {
    pub(super) status: Status,
    pub(super) counted: u16,
}

impl CommandEnd {
    fn well() -> Self {
        let mut status = Status::failure(0, "", "");
        status.status = "Success".to_owned();
        Self { status, counted: 200 }
    }

    /// A failure of the session itself.
    pub(super) fn failed(why: &str) -> Self {
        Self { status: Status::internal(why), counted: 500 }
    }

    /// The kubelet does not begin: `said` instead of switching protocols.
    pub(super) fn refused(said: &[u8]) -> Self {
        let kind = |value: &serde_json::Value| (value["kind"] == "Status" && value["apiVersion"] == "v1").then_some(());
        let status = serde_json::from_slice(said).ok().filter(|value| kind(value).is_some());
        match status.and_then(|value| serde_json::from_value::<Status>(value).ok()) {
            Some(status) => Self { counted: status.code, status },
            None => {
                let said = String::from_utf8_lossy(said);
                Self::failed(&format!("unable to upgrade connection: {}", said.trim()))
            }
        }
    }

    /// The session ended after the kubelet said this. Who says nothing has nothing to complain of, even where the
    /// connection just broke: upstream's library does not tell the two apart.
    pub(super) fn after(said: &[u8]) -> Self {
        if said.is_empty() {
            return Self::well();
        }
        let text = String::from_utf8_lossy(said);
        let wrong = |why: &str| Self::failed(&format!("error stream protocol error: {why}"));
        let not_understood = |why: &str| wrong(&format!("{why} in {}", go_quote(&text)));
        if let Err(why) = json::syntax(said) {
            return not_understood(&why.to_string());
        }
        match serde_json::from_slice::<KubeletStatus>(said) {
            Err(why) => not_understood(&why.to_string()),
            Ok(said) if said.status == "Success" => Self::well(),
            Ok(said) if said.status != "Failure" => wrong("unknown error"),
            Ok(said) if said.reason != NON_ZERO => Self::failed(&said.message),
            Ok(KubeletStatus { details: None, .. }) => wrong("details must be set"),
            Ok(KubeletStatus { details: Some(details), .. }) => {
                let Some(cause) = details.causes.iter().find(|cause| cause.reason == EXIT_CODE) else {
                    return wrong(&format!("no {EXIT_CODE} cause given"));
                };
                match cause.message.parse() {
                    Ok(code) => Self::exited(code),
                    Err(_) => wrong(&format!("invalid exit code value {}", go_quote(&cause.message))),
                }
            }
        }
    }

    fn exited(code: u8) -> Self {
        let why = format!("command terminated with non-zero exit code: command terminated with exit code {code}");
        let mut status = Status::failure(0, NON_ZERO, why);
        status.add_cause(EXIT_CODE, &code.to_string(), "");
        Self { status, counted: 200 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn internal(why: &str) -> String {
        format!(
            r#"{{"metadata":{{}},"status":"Failure","message":"Internal error occurred: {why}","reason":"InternalError","details":{{"causes":[{{"message":"{why}"}}]}},"code":500}}"#
        )
    }

    fn shown(ended: &CommandEnd) -> (String, u16) {
        (String::from_utf8(ended.status.to_bare_json()).expect("text"), ended.counted)
    }

    #[test]
    fn kubelet_status_is_translated_for_clients() {
        let well = r#"{"metadata":{},"status":"Success"}"#.to_owned();
        let seven = r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: command terminated with exit code 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        let odd = |why: &str| internal(&format!("error stream protocol error: {why}"));
        for (said, want, counted) in [
            ("", well.clone(), 200),
            (r#"{"kind":"Status","status":"Success"}"#, well, 200),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"x"},{"reason":"ExitCode","message":"7"}]}}"#,
                seven.to_owned(),
                200,
            ),
            (r#"{"status":"Failure","reason":"NonZeroExitCode"}"#, odd("details must be set"), 500),
            (r#"{"status":"Failure","reason":"NonZeroExitCode","details":{}}"#, odd("no ExitCode cause given"), 500),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"300"}]}}"#,
                odd(r#"invalid exit code value \"300\""#),
                500,
            ),
            (r#"{"status":"Failure","reason":"InternalError","message":"it broke"}"#, internal("it broke"), 500),
            ("{}", odd("unknown error"), 500),
            ("junk", odd(r#"invalid character 'j' looking for beginning of value in \"junk\""#), 500),
        ] {
            assert_eq!(shown(&CommandEnd::after(said.as_bytes())), (want, counted), "{said}");
        }
    }

    #[test]
    fn refusals_keep_the_kubelets_text() {
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"none","reason":"NotFound","code":404}"#;
        let bare = r#"{"metadata":{},"status":"Failure","message":"none","reason":"NotFound","code":404}"#;
        assert_eq!(shown(&CommandEnd::refused(status.as_bytes())), (bare.to_owned(), 404));
        let plain = internal("unable to upgrade connection: boom");
        assert_eq!(shown(&CommandEnd::refused(b"boom\n")), (plain, 500));
    }
}
