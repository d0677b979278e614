//! The service manager's protocol of units of `Type=notify`.
//!
//! Answers for `github.com/coreos/go-systemd/daemon`. Without `NOTIFY_SOCKET` nothing is sent.

use sd_notify::NotifyState;

/// Tells systemd that the process serves (`READY=1`).
pub fn notify_ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::error!(err = %error, "Unable to send systemd daemon successful start message");
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
    fn states_are_sent_to_the_socket_of_the_unit() {
        assert_eq!(said_by("ready_says_nothing_without_a_socket").trim_end(), "READY=1");
    }
}
