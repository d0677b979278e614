//! Lookups of hosts and users by name, in files and DNS alone.

#[cfg(target_env = "gnu")]
use std::ffi::{CStr, c_char, c_int};

/// Names are looked up in files and in DNS alone, as upstream's binaries do, which have no C library. `/etc/nsswitch.conf`
/// may name modules besides, such as `systemd`, `resolve` or `mymachines`: glibc loads these into a static binary too, with
/// the machine's own libc beside the one that is linked in, which works with the same release at best. `systemd`, asked for
/// a user, ends the process by SIGSEGV.
///
/// Called before other threads exist.
#[allow(unsafe_code, reason = "glibc's function has no safe wrapper")]
pub fn settle_names() {
    #[cfg(target_env = "gnu")]
    for (database, services) in DATABASES {
        // SAFETY: both are strings that end with a zero, which glibc only reads; no other thread looks anything up.
        let refused = unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) } != 0;
        debug_assert!(!refused, "{database:?} is a database of glibc's");
    }
}

#[cfg(target_env = "gnu")]
const DATABASES: [(&CStr, &CStr); 5] = [
    (c"hosts", c"files dns"),
    (c"services", c"files"),
    (c"protocols", c"files"),
    (c"passwd", c"files"),
    (c"group", c"files"),
];

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "the function is glibc's")]
unsafe extern "C" {
    fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
}

#[cfg(test)]
mod tests {
    use std::net::ToSocketAddrs as _;

    use super::*;

    #[test]
    fn files_are_looked_into() {
        settle_names();
        assert!(("localhost", 80).to_socket_addrs().expect("an address").any(|address| address.ip().is_loopback()));
        assert!(nix::unistd::User::from_name("root").expect("an answer").is_some_and(|user| user.uid.is_root()));
    }
}
