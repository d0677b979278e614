//! FlexVolumes that grow by their drivers, which are programs on this machine. Answers for `ExpandVolumeDevice` of upstream's
//! `pkg/volume/flexvolume`.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use shared::flex::{CallFailure, Drivers, FlexVolume};

use super::plan;
use crate::engine::object;

/// Failed calls of a driver, with its messages.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ExpandError {
    /// The driver does not name the volume.
    #[error("GetVolumeName failed from getDeviceMountPath: {0}")]
    VolumeName(String),
    /// The driver does not grow the volume.
    #[error("{0}")]
    Volume(String),
}

/// Lets the driver of a FlexVolume grow it to what its claim asks for. Reports whether nodes have a share in that; none for other
/// volumes, and where the driver is not here.
///
/// # Errors
/// [`ExpandError`].
pub(super) async fn expand(
    drivers: &Drivers,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<Option<bool>, ExpandError> {
    let Some(source) = volume.spec.as_ref().and_then(|spec| spec.flex_volume.as_ref()) else { return Ok(None) };
    let bound = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_ref());
    if bound != claim.metadata.uid.as_ref() {
        return Ok(None);
    }
    let name = object::name(&volume.metadata);
    let found = FlexVolume::persistent(name, source, source.read_only.unwrap_or(false));
    let Ok(driver) = drivers.get(&found.driver).await else { return Ok(None) };
    let by_nodes = Some(driver.abilities.requires_fs_resize);
    let Some((new, old)) = plan::growth(claim, volume) else { return Ok(by_nodes) };
    let json = found.json(BTreeMap::new());
    if let Err(CallFailure::Failed(error)) = driver.call("getvolumename", &[&json]).await {
        return Err(ExpandError::VolumeName(error));
    }
    // A controller manager has no folder of plugins: upstream's path is relative, too.
    let path = Path::new(&found.driver).join("mounts").join(name).display().to_string();
    match driver.call("expandvolume", &[&json, &path, &new.to_string(), &old.to_string()]).await {
        Ok(_) | Err(CallFailure::NotSupported) => Ok(by_nodes),
        Err(CallFailure::Failed(error)) => Err(ExpandError::Volume(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn drivers_grow_volumes_to_what_claims_ask_for() {
        let status = json!({"capacity": {"storage": "1Gi"}});
        let asked = json!({"resources": {"requests": {"storage": "2Gi"}}});
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"spec": asked, "status": status})).expect("claim");
        let volume = |source: serde_json::Value| -> PersistentVolume {
            let spec = json!({"capacity": {"storage": "1Gi"}, "flexVolume": source});
            serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).expect("volume")
        };
        let own = volume(json!({"driver": "vendor/disk"}));
        let (success, not_supported) = (r#"{"status": "Success"}"#, r#"{"status": "Not supported"}"#);
        let failure = r#"{"status": "Failure", "message": "no room"}"#;
        for (answer, expected) in [
            (success, Ok(Some(true))),
            (not_supported, Ok(Some(true))),
            (failure, Err("expandvolume command failed, status: Failure, reason: no room".to_owned())),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let program = folder.path().join("vendor~disk/disk");
            let script = format!(
                "#!/bin/sh\necho \"$1 $3 $4 $5\" >>{}/calls\n[ $1 != expandvolume ] || {{ echo '{answer}'; exit; }}\necho \
                 '{success}'\n",
                folder.path().display()
            );
            fs::create_dir_all(program.parent().expect("a folder")).expect("made");
            fs::write(&program, script).expect("written");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
            let drivers = Drivers::new(folder.path());
            let grown = expand(&drivers, &claim, &own).await.map_err(|error| error.to_string());
            assert_eq!(grown, expected);
            let calls = fs::read_to_string(folder.path().join("calls")).expect("calls");
            let last = calls.lines().last().map(str::to_owned);
            assert_eq!(last.as_deref(), Some("expandvolume vendor/disk/mounts/pv 2147483648 1073741824"), "{calls}");
            assert_eq!(expand(&drivers, &claim, &volume(json!({"driver": "vendor/other"}))).await, Ok(None));
            let mut foreign = claim.clone();
            foreign.metadata.uid = Some("other".to_owned());
            assert_eq!(expand(&drivers, &foreign, &own).await, Ok(None), "it is not the claim's");
        }
    }
}
