//! Managers of what containers have to themselves, built in the order in which they depend on one another.
//! Answers for the part of upstream's `NewContainerManager` that makes the CPU, memory and topology managers.

use crate::config::Config;
use crate::cpus::Cpus;
use crate::memory::MemoryManager;
use crate::resources::{self, MachineInfo};
use crate::settings::Settings;
use crate::topology::{NumaNodes, TopologyManager};
use anyhow::{Context as _, anyhow};
use std::path::Path;
use std::sync::Arc;

/// The managers, and the NUMA nodes of the machine.
pub(crate) struct Exclusive {
    pub(crate) nodes: Vec<u32>,
    pub(crate) topology: TopologyManager,
    pub(crate) cpus: Arc<Cpus>,
    pub(crate) memory: Arc<MemoryManager>,
}

impl Exclusive {
    /// The managers of a machine, as an earlier kubelet left them.
    ///
    /// # Errors
    /// A setting does not suit the machine, or what was left does not suit the settings; upstream's texts.
    pub(crate) fn new(config: &Config, settings: &Settings, machine: &MachineInfo) -> anyhow::Result<Self> {
        let (kubelet, system) = (&config.kubelet, Path::new("/sys/devices/system"));
        let nodes = NumaNodes::read(system).context("failed to read NUMA nodes")?;
        let placement = kubelet.topology(&config.gates).map_err(anyhow::Error::msg)?;
        let topology = TopologyManager::new(&placement, &nodes).map_err(anyhow::Error::msg)?;
        let cpus = Cpus::new(&settings.root_dir, system, &kubelet.cpus(&config.gates), topology.policy())
            .map_err(|error| anyhow!("Failed to start ContainerManager: start cpu manager error: {error}"))?;
        let kept = resources::kept_memory(machine, &settings.resources);
        let memory = MemoryManager::new(&settings.root_dir, &nodes, &kubelet.memory(kept))
            .map_err(|error| anyhow!("Failed to start ContainerManager: {error}"))?;
        Ok(Self { nodes: nodes.ids(), topology, cpus, memory })
    }
}
