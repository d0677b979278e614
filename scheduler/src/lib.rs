//! kube-scheduler
