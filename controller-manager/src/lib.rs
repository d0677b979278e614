//! kube-controller-manager
