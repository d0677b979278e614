//! The service manager's protocol of units of `Type=notify`.
//!
//! Answers for `github.com/coreos/go-systemd/daemon`. Without `NOTIFY_SOCKET` nothing is sent.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::flags::{NumberError, NumberProblem};

/// Tells systemd that the process serves (`READY=1`).
pub fn notify_ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::error!(err = %error, "Unable to send systemd daemon successful start message");
    }
}

/// Tells systemd's watchdog that the process is well (`WATCHDOG=1`).
///
/// # Errors
/// When there is a socket to tell and it does not take the message.
pub fn notify_alive() -> std::io::Result<()> {
    sd_notify::notify(&[NotifyState::Watchdog])
}

/// Errors of the variables that systemd sets, in the words of go-systemd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchdogError {
    /// A variable is no number.
    #[error("error converting {variable}: {source}")]
    Number {
        /// Name of the variable.
        variable: &'static str,
        /// Problem of its value.
        source: NumberError,
    },
    /// The time is not positive.
    #[error("error WATCHDOG_USEC must be a positive number")]
    NotPositive,
}

/// The time within which systemd wants to hear that this process is well: `WatchdogSec=` of its unit. Answers for
/// `SdWatchdogEnabled`.
///
/// # Errors
/// A variable of systemd's environment that holds no number, or a time that is not positive.
pub fn watchdog() -> Result<Option<Duration>, WatchdogError> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    watchdog_of(&variable("WATCHDOG_USEC"), &variable("WATCHDOG_PID"), std::process::id())
}

/// Judges the variables of the watchdog for the process `own`; an empty one is not set.
fn watchdog_of(microseconds: &str, pid: &str, own: u32) -> Result<Option<Duration>, WatchdogError> {
    if microseconds.is_empty() {
        return Ok(None);
    }
    let number = |variable: &'static str, text: &str| -> Result<i64, WatchdogError> {
        text.parse::<i64>().map_err(|_| {
            let source = NumberError::new("Atoi", text, NumberProblem::Syntax);
            WatchdogError::Number { variable, source }
        })
    };
    let Ok(interval @ 1..) = u64::try_from(number("WATCHDOG_USEC", microseconds)?) else {
        return Err(WatchdogError::NotPositive);
    };
    let other = !pid.is_empty() && number("WATCHDOG_PID", pid)? != i64::from(own);
    Ok((!other).then(|| Duration::from_micros(interval)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;
    use std::time::Duration;

    /// Runs this test binary again for one of the tests below, with a socket to tell.
    fn said_by(test: &str) -> String {
        let dir = std::env::temp_dir().join(format!("notify-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let socket = UnixDatagram::bind(dir.join("notify")).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("run::systemd::tests::{test}")])
            .env("NOTIFY_SOCKET", dir.join("notify"))
            .output()
            .unwrap();
        assert!(status.status.success(), "{status:?}");
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn ready_says_nothing_without_a_socket() {
        super::notify_ready();
    }

    #[test]
    fn alive_says_nothing_without_a_socket() {
        super::notify_alive().unwrap();
    }

    #[test]
    fn watchdog_is_asked_for_by_the_environment() {
        let second = Ok(Some(Duration::from_secs(1)));
        for (microseconds, pid, expected) in [
            ("", "", Ok(None)),
            ("", "x", Ok(None)),
            ("1000000", "", second),
            ("1000000", "7", second),
            ("1000000", "8", Ok(None)),
            ("0", "7", Err("error WATCHDOG_USEC must be a positive number")),
            ("-1", "7", Err("error WATCHDOG_USEC must be a positive number")),
            ("1s", "7", Err("error converting WATCHDOG_USEC: strconv.Atoi: parsing \"1s\": invalid syntax")),
            ("1", "me", Err("error converting WATCHDOG_PID: strconv.Atoi: parsing \"me\": invalid syntax")),
        ] {
            let expected = expected.map_err(str::to_owned);
            let found = super::watchdog_of(microseconds, pid, 7).map_err(|e| e.to_string());
            assert_eq!(found, expected, "{microseconds:?} {pid:?}");
        }
    }

    #[test]
    fn states_are_sent_to_the_socket_of_the_unit() {
        assert_eq!(said_by("ready_says_nothing_without_a_socket").trim_end(), "READY=1");
        assert_eq!(said_by("alive_says_nothing_without_a_socket").trim_end(), "WATCHDOG=1");
    }
}
