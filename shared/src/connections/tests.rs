use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

fn source(last: u8) -> ConnectionSource {
    ConnectionSource::from(IpAddr::from([192, 0, 2, last]))
}

/// A table of 16 places: two are reserved, four are a source's share.
fn table() -> Table {
    Table::new(16)
}

#[test]
fn sources_are_addresses_and_ipv6_networks() {
    let of = |text: &str| ConnectionSource::from(text.parse::<IpAddr>().expect("an address"));
    for (one, other, same) in [
        ("192.0.2.1", "192.0.2.1", true),
        ("192.0.2.1", "192.0.2.2", false),
        ("192.0.2.1", "::ffff:192.0.2.1", true),
        ("2001:db8::1", "2001:db8::ffff:0:1", true),
        ("2001:db8::1", "2001:db8:0:1::1", false),
    ] {
        assert_eq!(of(one) == of(other), same, "{one} {other}");
    }
}

#[test]
fn the_oldest_stranger_of_the_largest_source_makes_room() {
    let mut table = table();
    let (few, _) = table.admit(source(1));
    let many: Vec<u64> = (0..13).map(|_| table.admit(source(2)).0).collect();
    assert_eq!(table.strangers, 14, "all that strangers may have");
    assert_eq!(table.admit(source(3)).1, Some(many[0]), "not the oldest of all");
    assert_eq!(table.admit(source(2)).1, Some(many[1]), "its own");
    assert_eq!(table.strangers, 14);
    assert!(table.sources[&source(1)].strangers.contains(&few));
}

#[test]
fn a_reserve_is_for_those_who_authenticated() {
    let mut table = table();
    let known: Vec<u64> = (1..=2).map(|last| table.admit(source(last)).0).collect();
    for (last, number) in (1..=2).zip(&known) {
        assert!(table.authenticated(source(last), *number));
    }
    for _ in 0..100 {
        let (_, shed) = table.admit(source(9));
        assert!(shed.is_none_or(|shed| !known.contains(&shed)));
    }
    assert_eq!((table.known, table.strangers), (2, 14));
    let (third, shed) = table.admit(source(3));
    assert!(shed.is_some_and(|shed| shed != third) && table.authenticated(source(3), third));
    assert_eq!((table.known, table.strangers), (3, 13));
}

#[test]
fn one_source_has_no_more_than_its_share_of_known_places() {
    let mut table = table();
    let numbers: Vec<u64> = (0..6).map(|_| table.admit(source(1)).0).collect();
    let known = numbers.iter().filter(|number| table.authenticated(source(1), **number)).count();
    assert_eq!((known, table.known, table.strangers), (4, 4, 2));
    // Twelve others take their share, and nobody is left to make room but who comes.
    for last in 2..=4 {
        for _ in 0..4 {
            let (number, _) = table.admit(source(last));
            assert!(table.authenticated(source(last), number));
        }
    }
    assert_eq!((table.known, table.strangers), (16, 0));
    let (number, shed) = table.admit(source(5));
    assert_eq!(shed, Some(number), "it makes room for itself");
}

#[test]
fn accounts_are_even_when_all_have_left() {
    let (mut table, mut open) = (table(), Vec::new());
    for round in 0..200_u8 {
        let from = source(round % 5);
        let (number, shed) = table.admit(from);
        open.push((from, number, round % 3 == 0 && table.authenticated(from, number)));
        assert!(table.known + table.strangers <= 16, "{round}");
        // Who was shed leaves as well, later.
        if shed.is_some() {
            let (from, number, known) = open.remove(0);
            table.leave(from, number, known);
        }
    }
    for (from, number, known) in open {
        table.leave(from, number, known);
    }
    assert_eq!((table.known, table.strangers), (0, 0));
    assert!(table.sources.is_empty() && table.by_strangers.is_empty());
}

#[tokio::test]
async fn a_connection_that_lost_its_place_ends_and_frees_it_once() {
    let limits = ConnectionLimits::exactly(8);
    let address = IpAddr::from([192, 0, 2, 1]);
    let (ours, mut theirs) = tokio::io::duplex(64);
    let mut first = Limited::new(ours, limits.admit(address));
    theirs.write_all(b"a").await.expect("open");
    let mut one = [0];
    assert_eq!(first.read(&mut one).await.expect("heard"), 1);
    let reading = tokio::spawn(async move {
        let ended = first.read(&mut [0]).await;
        (first, ended)
    });
    tokio::task::yield_now().await;
    let others: Vec<Standing> = (0..7).map(|_| limits.admit(address)).collect();
    let (first, ended) = tokio::time::timeout(Duration::from_secs(5), reading).await.expect("woken").expect("no panic");
    assert_eq!(ended.expect_err("over").kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(limits.held(), 7);
    first.standing().authenticated();
    assert!(first.standing().is_shed(), "it is too late");
    drop(first);
    assert_eq!(limits.held(), 7, "its place was taken before");
    others[0].authenticated();
    others[0].authenticated();
    drop(others);
    assert_eq!(limits.held(), 0);
}
