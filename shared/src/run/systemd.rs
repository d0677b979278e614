//! The service manager's protocol: units of `Type=notify` and their watchdog.
//!
//! Answers for `github.com/coreos/go-systemd/daemon`. Without `NOTIFY_SOCKET` nothing is sent.

use std::time::Duration;

use sd_notify::NotifyState;

/// Tells systemd that the process serves (`READY=1`).
pub fn notify_ready() {
    send(NotifyState::Ready, "Unable to send systemd daemon successful start message");
}

/// Tells systemd's watchdog that the process is healthy (`WATCHDOG=1`).
pub fn notify_watchdog() {
    send(NotifyState::Watchdog, "Failed to notify systemd watchdog");
}

/// Time within which the watchdog has to hear of this process (`WATCHDOG_USEC`), or `None` without a watchdog.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|interval| !interval.is_zero())
}

fn send(state: NotifyState<'_>, failure: &str) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::error!(err = %error, "{failure}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    /// Runs this test binary again for one of the tests below, with a socket to tell.
    fn said_by(test: &str) -> String {
        let dir = std::env::temp_dir().join(format!("notify-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let socket = UnixDatagram::bind(dir.join("notify")).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("run::systemd::tests::{test}")])
            .env("NOTIFY_SOCKET", dir.join("notify"))
            .env("WATCHDOG_USEC", "30000000")
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
    fn healthy_says_nothing_without_a_socket() {
        if super::watchdog_interval().is_some() {
            super::notify_watchdog();
        }
    }

    #[test]
    fn states_are_sent_to_the_socket_of_the_unit() {
        assert_eq!(said_by("ready_says_nothing_without_a_socket").trim_end(), "READY=1");
        assert_eq!(said_by("healthy_says_nothing_without_a_socket").trim_end(), "WATCHDOG=1");
    }
}
