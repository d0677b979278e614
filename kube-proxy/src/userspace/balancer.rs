//! Choice of an endpoint for a connection: in turn, or the one that the client had. Pure; time is an argument.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Clients that are remembered for a port. Beyond it the one that was not seen for the longest time is forgotten.
const CLIENTS: usize = 4_096;

/// Endpoints of a port, and the clients that stay with theirs.
#[derive(Debug, Default)]
pub(super) struct Balancer {
    endpoints: Vec<SocketAddr>,
    next: usize,
    affinity: Option<Duration>,
    clients: HashMap<IpAddr, (SocketAddr, Instant)>,
}

impl Balancer {
    /// Sets the endpoints. Clients of those that are gone are free again.
    pub(super) fn set(&mut self, endpoints: Vec<SocketAddr>, affinity: Option<Duration>) {
        self.affinity = affinity;
        self.clients.retain(|_, (endpoint, _)| affinity.is_some() && endpoints.contains(endpoint));
        self.endpoints = endpoints;
    }

    /// True for an endpoint that may have connections.
    pub(super) fn has(&self, endpoint: SocketAddr) -> bool {
        self.endpoints.contains(&endpoint)
    }

    /// Chooses for a client. One that could not be reached loses its client with `again`. `None` without endpoints.
    pub(super) fn pick(&mut self, client: IpAddr, now: Instant, again: bool) -> Option<SocketAddr> {
        if let (Some(affinity), Some((endpoint, seen)), false) = (self.affinity, self.clients.get_mut(&client), again)
            && now.saturating_duration_since(*seen) < affinity
        {
            *seen = now;
            return Some(*endpoint);
        }
        let endpoint = *self.endpoints.get(self.next % self.endpoints.len().max(1))?;
        self.next = self.next.wrapping_add(1);
        if let Some(affinity) = self.affinity {
            self.remember(client, endpoint, now, affinity);
        }
        Some(endpoint)
    }

    fn remember(&mut self, client: IpAddr, endpoint: SocketAddr, now: Instant, affinity: Duration) {
        if self.clients.len() >= CLIENTS && !self.clients.contains_key(&client) {
            self.clients.retain(|_, (_, seen)| now.saturating_duration_since(*seen) < affinity);
        }
        if self.clients.len() >= CLIENTS && !self.clients.contains_key(&client) {
            let oldest = self.clients.iter().min_by_key(|(_, (_, seen))| *seen).map(|(client, _)| *client);
            oldest.map(|client| self.clients.remove(&client));
        }
        self.clients.insert(client, (endpoint, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 80))
    }

    fn client(number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        IpAddr::from([192, 0, high, low])
    }

    #[test]
    fn endpoints_take_turns() {
        let mut balancer = Balancer::default();
        let now = Instant::now();
        assert_eq!(balancer.pick(client(1), now, false), None);
        balancer.set(vec![at(1), at(2), at(3)], None);
        let picked: Vec<_> = (0..6).filter_map(|_| balancer.pick(client(1), now, false)).collect();
        assert_eq!(picked, [at(1), at(2), at(3), at(1), at(2), at(3)]);
        assert!(balancer.clients.is_empty());
    }

    #[test]
    fn a_client_stays_until_its_time_is_over_or_its_endpoint_is_gone() {
        let mut balancer = Balancer::default();
        let (start, affinity) = (Instant::now(), Duration::from_secs(10));
        balancer.set(vec![at(1), at(2)], Some(affinity));
        let after = |seconds| start + Duration::from_secs(seconds);
        for seconds in [0, 9, 18] {
            assert_eq!(balancer.pick(client(1), after(seconds), false), Some(at(1)), "each connection is a new start");
        }
        assert_eq!(balancer.pick(client(2), after(18), false), Some(at(2)));
        assert_eq!(balancer.pick(client(3), after(18), false), Some(at(1)));
        assert_eq!(balancer.pick(client(1), after(28), false), Some(at(2)), "too late");
        assert_eq!(balancer.pick(client(1), after(28), true), Some(at(1)), "the other one did not answer");
        balancer.set(vec![at(2)], Some(affinity));
        assert_eq!(balancer.pick(client(1), after(29), false), Some(at(2)));
    }

    #[test]
    fn clients_that_are_remembered_are_limited() {
        let mut balancer = Balancer::default();
        let start = Instant::now();
        balancer.set(vec![at(1), at(2)], Some(Duration::from_secs(3_600)));
        for number in 0..u16::try_from(CLIENTS + 10).expect("a small number") {
            balancer.pick(client(number), start + Duration::from_millis(number.into()), false);
        }
        assert_eq!(balancer.clients.len(), CLIENTS);
        assert!(!balancer.clients.contains_key(&client(9)) && balancer.clients.contains_key(&client(10)));
    }
}
