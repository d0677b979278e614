use super::*;
use crate::plan::{Endpoint, ServicePort};

fn name(service: &str) -> PortName {
    PortName { namespace: "n".into(), service: service.into(), port: String::new(), protocol: Protocol::Tcp }
}

fn port(address: &str, endpoint: &str) -> ServicePort {
    let endpoint = Endpoint { address: endpoint.parse().expect("ip"), port: 80, local: false };
    ServicePort::plain(address, 80, vec![endpoint])
}

fn put(applied: &mut Applied, service: &str, port: Option<&ServicePort>) -> Changes {
    let (mut changes, mut draining) = (Changes::default(), Draining::default());
    let name = name(service);
    applied.put(&name, port.map(|port| part(&name, port, &NodeAddresses::default())), &mut draining, &mut changes);
    changes
}

#[test]
fn services_of_one_address_share_it_and_the_first_has_its_port() {
    let mut applied = Applied::default();
    let address: IpAddr = "10.96.0.5".parse().expect("ip");
    let (a, b) = (port("10.96.0.5", "10.1.0.1"), port("10.96.0.5", "10.1.0.2"));
    let first = put(&mut applied, "b", Some(&b));
    assert_eq!(first.steps[0], KernelStep::Bind(address));
    assert_eq!(first.members.len(), 2);
    let key = VirtualServer { address, port: 80, protocol: Protocol::Tcp };
    let real = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let taken = put(&mut applied, "a", Some(&a));
    let swap = |to: &str, from: &str| {
        vec![KernelStep::SetReal(key.clone(), real(to), 1), KernelStep::SetReal(key.clone(), real(from), 0)]
    };
    assert_eq!(taken.steps, swap("10.1.0.1:80", "10.1.0.2:80"));
    assert!(taken.members.is_empty());
    let back = put(&mut applied, "a", None);
    assert_eq!(back.steps, swap("10.1.0.2:80", "10.1.0.1:80"));
    let gone = put(&mut applied, "b", None);
    assert_eq!(gone.steps, [KernelStep::Remove(key), KernelStep::Unbind(address)]);
    assert!(applied.servers.is_empty() && applied.members.filled().is_empty());
}

#[test]
fn a_port_that_is_as_before_changes_nothing() {
    let mut applied = Applied::default();
    let port = port("10.96.0.5", "10.1.0.1");
    put(&mut applied, "a", Some(&port));
    let again = put(&mut applied, "a", Some(&port));
    assert!(again.steps.is_empty() && again.members.is_empty());
}
