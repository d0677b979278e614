//! Storage with upstream's counterparts: csi-test's sanity suite against the CSI driver of the tests, and the driver in a
//! cluster with upstream's attacher, provisioner, resizer and snapshotter.

#![allow(clippy::panic, reason = "a test panics to say what is wrong")]

mod sanity;
mod volumes;

#[test]
fn the_driver_is_sane() {
    sanity::passes("mount");
    sanity::passes("block");
}

#[test]
fn volumes_live() {
    volumes::live();
}
