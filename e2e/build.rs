//! Compiles the interface that examples/csi-driver serves, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=../kubelet/proto/csi.proto");
    let services = protox::compile(["csi.proto", "csi_controller.proto"], ["../kubelet/proto", "proto"])?;
    tonic_prost_build::configure().build_client(false).btree_map(".").compile_fds(services)?;
    Ok(())
}
