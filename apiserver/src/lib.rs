//! kube-apiserver
