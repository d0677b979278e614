//! What all five components share: flags, serving, client, informers, access chains
