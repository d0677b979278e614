//! Bytes from anybody: whatever a client, a peer or etcd may send, nothing panics and nothing takes long.
//!
//! A test for each target. By default each runs for a moment; `FUZZ_SECONDS` gives each so many seconds, `FUZZ_SEED`
//! other bytes. A failure prints its input.
#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod driver;

macro_rules! tests {
    ($($name:ident $seeds:tt)+) => {
        $(#[test]
        fn $name() {
            driver::run(fuzz::target(stringify!($name)).expect("a target of the table"));
        })+
    };
}
fuzz::each_target!(tests);
