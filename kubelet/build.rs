//! Compiles the interfaces of runtimes and plugins without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let runtime = protox::compile(["proto/cri.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).btree_map(".").compile_fds(runtime)?;
    // The kubelet serves some of them, and tests serve what plugins do.
    for plugin in ["csi", "deviceplugin", "dra", "drahealth", "pluginregistration", "podresources"] {
        let plugin = protox::compile([format!("proto/{plugin}.proto")], ["proto"])?;
        tonic_prost_build::configure().btree_map(".").compile_fds(plugin)?;
    }
    Ok(())
}
