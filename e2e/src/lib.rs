//! The cluster harness, and the tests and benchmarks that need a running cluster
