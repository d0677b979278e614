//! An extender that fails now and then.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::cluster::Cluster;
use crate::framework::extender::{Extender, ExtenderError, Filtered, Victims, Weighed};
use crate::model::{NodeInfo, PodInfo};

pub(super) struct Flaky {
    pub(super) cluster: Arc<Cluster>,
    pub(super) ignorable: bool,
    pub(super) binds: bool,
}

#[async_trait]
impl Extender for Flaky {
    fn name(&self) -> &str {
        "flaky"
    }
    fn ignorable(&self) -> bool {
        self.ignorable
    }
    fn interested(&self, _: &PodInfo) -> bool {
        true
    }
    fn filters(&self) -> bool {
        true
    }
    fn preempts(&self) -> bool {
        true
    }
    fn binds(&self) -> bool {
        self.binds
    }

    fn filter(&self, _: &PodInfo, nodes: &[&NodeInfo]) -> Result<Filtered, ExtenderError> {
        if self.cluster.happens(8) {
            return Err(ExtenderError::Refused("context deadline exceeded".to_owned()));
        }
        let names = || nodes.iter().map(|n| n.name().to_string());
        if self.cluster.happens(8) {
            let failed = names().map(|name| (name, "not now".to_owned())).collect();
            return Ok(Filtered { failed, ..Filtered::default() });
        }
        Ok(Filtered { fine: names().collect(), ..Filtered::default() })
    }

    fn prioritize(&self, _: &PodInfo, nodes: &[&NodeInfo]) -> Result<Option<Weighed>, ExtenderError> {
        if self.cluster.happens(4) {
            return Err(ExtenderError::Refused("no scores".to_owned()));
        }
        Ok(Some((nodes.iter().map(|n| (n.name().to_string(), 7)).collect(), 1)))
    }

    fn preempt(
        &self,
        _: &PodInfo,
        victims: &HashMap<String, Victims>,
    ) -> Result<HashMap<String, Victims>, ExtenderError> {
        if self.cluster.happens(4) { Err(ExtenderError::Refused("no answer".to_owned())) } else { Ok(victims.clone()) }
    }

    async fn bind(&self, pod: &PodInfo, node: &str) -> Result<(), ExtenderError> {
        if self.cluster.happens(6) {
            return Err(ExtenderError::Refused("refused".to_owned()));
        }
        self.cluster.assign(pod, node).map_err(|e| ExtenderError::Refused(e.to_string()))
    }
}
