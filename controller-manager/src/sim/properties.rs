//! Invariants that hold at every moment, checked on every change the server stores while random things are done.
