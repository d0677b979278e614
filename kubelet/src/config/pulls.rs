//! Limits of image pulls, out of the configuration.

use super::KubeletConfiguration;
use crate::images::Pulls;

impl From<&KubeletConfiguration> for Pulls {
    fn from(kubelet: &KubeletConfiguration) -> Self {
        let most = || kubelet.max_parallel_image_pulls.and_then(|most| usize::try_from(most).ok());
        Self {
            parallel: if kubelet.serialize_image_pulls { Some(1) } else { most() },
            qps: kubelet.registry_pull_qps,
            burst: kubelet.registry_burst,
        }
    }
}
