# The commands a person must know. `make help` lists them.
NODES ?= 1
CONTROL_PLANE ?= processes
HA ?= 1
DNS ?= coredns
SERVICES ?=
IP_FAMILY ?= ipv4
CACHE ?= $(HOME)/.cache/ironclad
# Outside the clone, so that clones and CI share what is built.
export CARGO_TARGET_DIR ?= $(CACHE)/target
export PATH := $(CACHE)/bin:$(PATH)
# The machine's own target, named because release binaries are static (hack/build.sh).
TRIPLE := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
# What is to be played with is built fast, what is to be installed or measured is optimised as a whole (Cargo.toml).
export PROFILE = release
up status down backup restore load addons storage images dns-image: PROFILE = fast
export BIN = $(CARGO_TARGET_DIR)/$(TRIPLE)/$(PROFILE)
CLUSTER_BINARY = $(BIN)/cluster
# Of several clusters side by side each but the first has a NAME.
NAME ?=
RUN = .run$(addprefix -,$(NAME))
CLUSTER = $(CLUSTER_BINARY) --run $(RUN)

.PHONY: help up status down backup restore load addons storage chart-images helm kubectl build install deb test test-ha test-vm test-kubeadm test-helm test-storage fuzz fuzz-coverage chaos bench images dns-image release lint deps
help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

ifeq ($(filter $(DNS),coredns none),)
$(error DNS=$(DNS) is not known; use coredns or none)
endif
ifneq ($(SERVICES),)
WITH_SERVICES := --service-cidr $(SERVICES)
endif
ifeq ($(IP_FAMILY),dual)
FAMILIES := --dual-stack
else ifneq ($(IP_FAMILY),ipv4)
$(error IP_FAMILY=$(IP_FAMILY) is not known; use ipv4 or dual)
endif
ifeq ($(HA),3)
CONTROL_PLANE := ha
else ifneq ($(HA),1)
$(error HA=$(HA) is not known; use 1 or 3)
endif
up: deps build ## Start a cluster of NODES nodes (1), its CONTROL_PLANE as processes or static-pods or HA=3 of each, its DNS coredns or none, its IP_FAMILY ipv4 or dual, its SERVICES in a range (10.96.0.0/12), and beside others by its NAME
	@dns=$$(hack/dns-image.sh $(DNS) $(CACHE)/images $(CLUSTER_BINARY)) && \
		$(CLUSTER) up --nodes $(NODES) --control-plane $(CONTROL_PLANE) $(FAMILIES) $(WITH_SERVICES) $$dns

status: ## Tell what of the cluster runs, and how to talk to it
	@$(CLUSTER) status

down: ## Stop the cluster and leave nothing behind
	@if [ -x $(BIN)/cluster ]; then $(CLUSTER) down; elif [ -e $(RUN) ]; then echo "error: the cluster program is not built; run: make build PROFILE=fast"; exit 1; fi

backup: ## Save etcd and the certificates into the new folder BACKUP
	@test -n "$(BACKUP)" || { echo "error: no folder given; use: make backup BACKUP=folder"; exit 1; }
	@$(CLUSTER) backup $(BACKUP)

restore: ## Bring etcd back to what the folder BACKUP has
	@test -n "$(BACKUP)" || { echo "error: no folder given; use: make restore BACKUP=folder"; exit 1; }
	@$(CLUSTER) restore $(BACKUP)

load: ## Import the image archive IMAGE into every node
	@test -n "$(IMAGE)" || { echo "error: no archive given; use: make load IMAGE=archive.tar"; exit 1; }
	@$(CLUSTER) load $(IMAGE)

ADDONS ?= local-path metrics-server
addons: deps ## Give the running cluster ADDONS: local-path (the default StorageClass), metrics-server (kubectl top)
	@hack/addons.sh $(CACHE) $(CLUSTER_BINARY) $(RUN) $(ADDONS)

storage: deps ## Give the running cluster volumes that move, grow and have snapshots: a CSI driver with upstream's sidecars
	@hack/build.sh $(TRIPLE) --package ironclad-e2e --example csi-driver
	@hack/storage.sh $(CACHE) $(CLUSTER_BINARY) $(RUN) $(BIN)/examples/csi-driver

CHART_IMAGES := kube-apiserver kube-controller-manager kube-scheduler control-plane-bootstrap etcd proxy-server proxy-agent
chart-images: deps ## Build the images of the chart control-plane, as a release has them
	@IMAGES="$(CHART_IMAGES)" DIST=$(CACHE)/images/chart hack/release.sh $(CACHE) $(TRIPLE)

helm: deps ## Build Helm from its Go module
	@e2e/images/module.sh $(CACHE) helm
	@echo $(CACHE)/go/helm

kubectl: deps ## Build kubectl of this release from its Go module, for these commands and for the PATH
	@e2e/images/go.sh $(CACHE) kubectl
	@install -D $(CACHE)/go/kubectl $(CACHE)/bin/kubectl
	@echo $(CACHE)/bin/kubectl

test-helm: deps ## Install, upgrade, join and uninstall tenants' control planes by the chart, on debug builds
	@hack/test-helm.sh $(CACHE)

test-storage: deps ## Run csi-test's sanity suite against the tests' CSI driver, and the driver in a cluster with upstream's sidecars, on debug builds
	@hack/test-storage.sh $(CACHE)

build: deps ## Build the five binaries and the cluster program
	@hack/build.sh $(TRIPLE) --bins

DESTDIR ?=
PREFIX ?= /usr
install: ## Install binaries, units and manifests below DESTDIR, with PREFIX (/usr) for all but /etc
	@DESTDIR=$(DESTDIR) PREFIX=$(PREFIX) hack/install.sh $(BIN)

deb: build ## Build Debian packages of the binaries and their units
	@hack/deb.sh $(BIN) $(CARGO_TARGET_DIR)/deb

test: deps ## Run every test: unit, integration against etcd, end to end
	@hack/test.sh

test-vm: deps build ## Boot a machine with systemd and cgroups v2, install the packages there, and look at its node
	@hack/machine/test.sh $(CACHE) $(BIN)

HA_SECONDS ?= 60
test-ha: deps ## Take the parts of a control plane of three away, one after another, then for HA_SECONDS (60) at random (HA_SEED)
	@cargo build --workspace --locked --bins --examples
	@HA_SECONDS=$(HA_SECONDS) HA_SEED=$${HA_SEED:-$$(date +%s)} BINARIES=$(CARGO_TARGET_DIR)/debug \
		cargo test --workspace --locked --test ha -- --nocapture --test-threads=1

test-kubeadm: deps ## Run upstream's kubeadm with our images: init, join, upgrade, reset, and swaps of single components
	@hack/kubeadm.sh $(CACHE)

FUZZ_SECONDS ?= 600
fuzz: ## Give every decoder, selector, patch, expression and frame bad bytes, FUZZ_SECONDS (600) each
	@FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=$${FUZZ_SEED:-$$(date +%s)} \
		cargo test --locked -p ironclad-fuzz -- --nocapture

fuzz-coverage: deps ## Give the targets of fuzz/ (or FUZZ_TARGET) bytes that cargo-fuzz finds by coverage, FUZZ_SECONDS (600) each
	@hack/fuzz.sh $(CACHE)

CHAOS_SECONDS ?= 600
chaos: export CHAOS_SECONDS := $(CHAOS_SECONDS)
chaos: export CHAOS_SEED ?= $(shell date +%s)
chaos: export NODE_CHAOS_KILLS ?= 200
chaos: export NODE_OUTAGE_SECONDS ?= 300
chaos: export HANDOVERS ?= 200
chaos: export HANDOVER_REPLICAS ?= 1000
chaos: export HANDOVER_SEED ?= $(shell date +%s)
chaos: deps ## Play controllers and scheduler under lags, outages and failures from seeds, CHAOS_SECONDS (600) each; hand leadership over HANDOVERS (200) times under a rollout of HANDOVER_REPLICAS (1000) pods; kill a node's kubelet and runtime NODE_CHAOS_KILLS (200) times and take its API server away for NODE_OUTAGE_SECONDS (300)
	@cargo test --locked -p ironclad-controller-manager --lib -- sim::tests::seeded --nocapture
	@cargo test --locked -p ironclad-scheduler --lib -- driver::chaos --nocapture
	@cargo build --workspace --locked --bins --examples
	@BINARIES=$(CARGO_TARGET_DIR)/debug cargo test --workspace --locked --test handover -- --nocapture --test-threads=1
	@e2e/images/build.sh $(CACHE)/images $(CARGO_TARGET_DIR)/debug/cluster busybox
	@BINARIES=$(CARGO_TARGET_DIR)/debug cargo test --workspace --locked --test node_chaos -- --nocapture

bench: deps build ## Print one JSON line for each figure; BENCH=parallel for those of one program, and no new SPECIFICATION.md
	@hack/bench.sh $(CACHE) $(TRIPLE)

images: deps build ## Build the images of the example offline from Debian packages
	@e2e/images/build.sh $(CACHE)/images $(BIN)/cluster

dns-image: deps build ## Build the image of CoreDNS from its Go module
	@e2e/images/coredns.sh $(CACHE)/images $(BIN)/cluster

release: deps ## Make images, tarballs, sums and an SBOM of VERSION in DIST (dist), for ARCHES (of amd64 and arm64; this machine's)
	@hack/release.sh $(CACHE) $(TRIPLE)

lint: ## rustfmt, checks of the tree (xtask) and clippy, warnings are errors
	@cargo fmt --all --check
	@cargo xtask tidy
	@cargo clippy --workspace --all-targets --locked -- -D warnings

deps: ## Install what is missing on this machine
	@hack/install-deps.sh $(CACHE)
