//! Tables and small simulations with a clock of their own.

use super::*;

const FAIR: QueueMode = QueueMode::Queue { queues: 64, hand: 1, length: 10 };

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn set(mode: QueueMode, limit: u32) -> QueueSet<u64> {
    QueueSet::new(mode, limit)
}

fn come(set: &mut QueueSet<u64>, at: u64, flow: u64, seats: u32) -> Start {
    let (start, told) = set.start(ms(at), || flow, Work::of(seats), || flow);
    assert!(told.is_empty());
    start
}

fn granted(start: Start) -> Grant {
    match start {
        Start::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

#[test]
fn seats_are_granted_and_returned() {
    let mut s = set(FAIR, 2);
    let a = granted(come(&mut s, 0, 1, 1));
    let _b = granted(come(&mut s, 0, 2, 1));
    assert!(matches!(come(&mut s, 1, 3, 1), Start::Waits { queue: 3, length: 1, .. }));
    assert_eq!(s.load(), (1, 2, 2));
    let told = s.finish(ms(5), &a);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].0, told[0].1.queue), (3, Some(3)));
    assert_eq!(s.load(), (0, 2, 2));
    s.finish(ms(6), &told[0].1);
    assert_eq!(s.load(), (0, 1, 1));
}

#[test]
fn idle_levels_have_no_state() {
    let mut s = set(FAIR, 1);
    let grant = granted(come(&mut s, 0, 1, 1));
    assert_eq!(s.busy().count(), 1);
    s.finish(ms(1), &grant);
    assert_eq!(s.busy().count(), 0);
    assert!(s.is_idle());
}

#[test]
fn without_queues_there_is_a_seat_or_there_is_not() {
    let mut s = set(QueueMode::Reject, 1);
    let grant = granted(come(&mut s, 0, 1, 1));
    assert_eq!(come(&mut s, 0, 1, 1), Start::Refused(RejectReason::Full));
    s.finish(ms(1), &grant);
    granted(come(&mut s, 1, 1, 1));
    granted(come(&mut set(QueueMode::Reject, 20), 0, 1, 20));
    let mut exempt = set(QueueMode::Exempt, 0);
    for _ in 0..10 {
        granted(come(&mut exempt, 0, 1, 5));
    }
}

#[test]
fn full_queues_send_away() {
    let mut s = set(FAIR, 1);
    granted(come(&mut s, 0, 1, 1));
    for _ in 0..10 {
        assert!(matches!(come(&mut s, 0, 1, 1), Start::Waits { .. }));
    }
    assert_eq!(come(&mut s, 0, 1, 1), Start::Refused(RejectReason::QueueFull));
    assert!(matches!(come(&mut s, 0, 2, 1), Start::Waits { .. }), "another flow has a queue of its own");
}

#[test]
fn a_flow_uses_the_emptiest_queue_of_its_hand() {
    let mut s = set(QueueMode::Queue { queues: 8, hand: 4, length: 50 }, 1);
    granted(come(&mut s, 0, 7, 1));
    let mut used = BTreeSet::new();
    for _ in 0..4 {
        if let Start::Waits { queue, length, .. } = come(&mut s, 0, 7, 1) {
            assert_eq!(length, 1);
            used.insert(queue);
        }
    }
    assert_eq!(used.len(), 4);
}

#[test]
fn cancelled_requests_are_not_dispatched() {
    let mut s = set(FAIR, 1);
    let grant = granted(come(&mut s, 0, 1, 1));
    let Start::Waits { queue, ticket, .. } = come(&mut s, 0, 2, 1) else { panic!("it waits") };
    assert!(s.cancel(ms(1), queue, ticket, true));
    assert!(!s.cancel(ms(1), queue, ticket, true));
    assert!(s.finish(ms(2), &grant).is_empty());
    assert_eq!(s.counts, Counts { dispatched: 1, timed_out: 1, ..Counts::default() });
    assert!(s.is_idle());
}

#[test]
fn wide_requests_are_not_starved() {
    let mut s = set(FAIR, 4);
    let a = granted(come(&mut s, 0, 1, 3));
    assert!(matches!(come(&mut s, 1, 2, 4), Start::Waits { .. }));
    // A narrow one costs less and would be done first, so it is its turn.
    let (start, told) = s.start(ms(2), || 3, Work::of(1), || 3);
    assert!(matches!(start, Start::Waits { .. }));
    let [(3, narrow)] = told[..] else { panic!("it runs at once") };
    // The next one would be done after the wide one: it waits though its seat is free.
    assert!(s.finish(ms(1000), &narrow).is_empty());
    assert_eq!(s.load(), (1, 1, 3));
    assert_eq!(s.take_held_up(), Some(&2));
    let told = s.finish(ms(1001), &a);
    assert_eq!(told[0].0, 2);
    s.finish(ms(1002), &told[0].1);
    let wide = granted(come(&mut s, 1010, 1, 9));
    assert!(matches!(come(&mut s, 1010, 2, 1), Start::Waits { .. }));
    assert_eq!(s.finish(ms(1011), &wide).len(), 1);
}

#[test]
fn the_wake_of_a_write_keeps_its_seats() {
    let mut s = set(FAIR, 2);
    let work = Work { seats: 1, last_seats: 2, tail: ms(5) };
    let (start, _) = s.start(ms(0), || 1, work, || 1);
    let grant = granted(start);
    assert!(matches!(come(&mut s, 1, 2, 1), Start::Waits { .. }));
    assert!(s.finish(ms(2), &grant).is_empty());
    assert_eq!((s.due(), s.load()), (Some(ms(7)), (1, 0, 2)));
    assert!(s.tick(ms(6)).is_empty());
    assert_eq!(s.tick(ms(7)).len(), 1);
    assert_eq!(s.due(), None);
}

#[test]
fn more_seats_are_used_at_once() {
    let mut s = set(FAIR, 1);
    granted(come(&mut s, 0, 1, 1));
    for flow in 2..6 {
        assert!(matches!(come(&mut s, 0, flow, 1), Start::Waits { .. }));
    }
    assert_eq!(s.configure(ms(1), FAIR, 4).len(), 3);
    assert_eq!(s.load(), (1, 4, 4));
}

/// Runs flows that keep some requests going each, with durations of their own; how many of each were served.
fn simulate(limit: u32, flows: &[(usize, u64, u32)], until: u64) -> Vec<u64> {
    let mut s = QueueSet::<usize>::new(QueueMode::Queue { queues: 64, hand: 1, length: 1000 }, limit);
    let mut running: Vec<(u64, usize, Grant)> = Vec::new();
    let mut served = vec![0; flows.len()];
    let mut next: Vec<usize> = flows.iter().enumerate().flat_map(|(i, f)| std::iter::repeat_n(i, f.0)).collect();
    for now in 0..until {
        let mut begun = Vec::new();
        for flow in next.drain(..) {
            let (start, told) = s.start(ms(now), || flow as u64, Work::of(flows[flow].2), || flow);
            begun.extend(told);
            match start {
                Start::Granted(grant) => begun.push((flow, grant)),
                Start::Waits { .. } => {}
                Start::Refused(why) => panic!("{why:?}"),
            }
        }
        running.extend(begun.into_iter().map(|(flow, grant)| (now + flows[flow].1, flow, grant)));
        let (done, rest): (Vec<_>, Vec<_>) = running.drain(..).partition(|(end, ..)| *end <= now);
        running = rest;
        for (_, flow, grant) in done {
            served[flow] += 1;
            next.push(flow);
            for (flow, grant) in s.finish(ms(now), &grant) {
                running.push((now + flows[flow].1, flow, grant));
            }
        }
    }
    served
}

#[test]
fn a_flood_does_not_take_more_than_its_share() {
    // One flow with 100 requests at a time, one with 4; both want half of the 4 seats or more.
    let served = simulate(4, &[(100, 10, 1), (4, 10, 1)], 20_000);
    let share = f64::from(u32::try_from(served[1]).expect("few")) / f64::from(u32::try_from(served[0]).expect("few"));
    assert!((0.9..=1.1).contains(&share), "{served:?}");
}

#[test]
fn fairness_is_by_seats_and_time_not_by_requests() {
    // Requests of the first last four times as long; those of the third take two seats.
    let served = simulate(4, &[(20, 40, 1), (20, 10, 1), (20, 10, 2)], 40_000);
    let used = [served[0] * 40, served[1] * 10, served[2] * 20];
    let (least, most) = (used.iter().min().copied().unwrap_or(0), used.iter().max().copied().unwrap_or(0));
    assert!(most * 10 <= least * 12, "{served:?} {used:?}");
}

#[test]
fn a_modest_flow_is_served_at_once() {
    // It uses one of four seats for a tenth of the time at most.
    let mut s = QueueSet::<usize>::new(FAIR, 4);
    let mut running: Vec<(u64, Grant)> = Vec::new();
    for _ in 0..14 {
        match s.start(ms(0), || 0, Work::of(1), || 0).0 {
            Start::Granted(grant) => running.push((10, grant)),
            other => assert!(matches!(other, Start::Waits { .. })),
        }
    }
    let mut waited = None;
    let mut came = 0;
    for now in 1..200 {
        let (done, rest): (Vec<_>, Vec<_>) = running.drain(..).partition(|(end, _)| *end <= now);
        running = rest;
        let mut told = Vec::new();
        for (_, grant) in done {
            told.extend(s.finish(ms(now), &grant));
            told.extend(s.start(ms(now), || 0, Work::of(1), || 0).1);
        }
        if now == 55 {
            let (start, more) = s.start(ms(now), || 1, Work::of(1), || 1);
            assert!(matches!(start, Start::Waits { .. }));
            told.extend(more);
            came = now;
        }
        for (flow, grant) in told {
            if flow == 1 {
                waited = Some(now - came);
            }
            running.push((now + 10, grant));
        }
    }
    assert!(waited.is_some_and(|w| w <= 10), "no longer than one request of the others: {waited:?}");
}

/// One flow keeps `flood` requests of some seats and milliseconds going; another comes alone at `come` with one seat.
/// How long it waits, in milliseconds.
fn wait_beside(limit: u32, flood: usize, seats: u32, lasts: u64, come: u64) -> u64 {
    let mut s = QueueSet::<usize>::new(QueueMode::Queue { queues: 64, hand: 1, length: 1000 }, limit);
    let mut running: Vec<(u64, Grant)> = Vec::new();
    let mut next = flood;
    for now in 0.. {
        let mut begun = Vec::new();
        let ended: Vec<(u64, Grant)> = running.extract_if(.., |(end, _)| *end <= now).collect();
        for (_, grant) in ended {
            next += 1;
            begun.extend(s.finish(ms(now), &grant));
        }
        for _ in 0..std::mem::take(&mut next) {
            let (start, told) = s.start(ms(now), || 0, Work::of(seats), || 0);
            begun.extend(told);
            if let Start::Granted(grant) = start {
                begun.push((0, grant));
            }
        }
        if now == come {
            let (start, told) = s.start(ms(now), || 1, Work::of(1), || 1);
            begun.extend(told);
            if let Start::Granted(_) = start {
                return 0;
            }
        }
        if begun.iter().any(|(flow, _)| *flow == 1) {
            return now - come;
        }
        running.extend(begun.into_iter().map(|(_, grant)| (now + lasts, grant)));
        assert!(now < come + 100 * lasts, "it waits for ever");
    }
    0
}

#[test]
fn narrow_requests_do_not_wait_for_the_readers_of_wide_ones() {
    let mut s = set(FAIR, 20);
    let wide: Vec<Grant> = (0..6).map(|_| granted(come(&mut s, 0, 1, 3))).collect();
    for flow in [1, 2] {
        assert!(matches!(come(&mut s, 1, flow, 3), Start::Waits { .. }), "18 seats are for wide ones");
    }
    let mut narrow = Vec::new();
    for flow in [3, 4] {
        let (start, told) = s.start(ms(5000), || flow, Work::of(1), || flow);
        assert!(matches!(start, Start::Waits { .. }));
        narrow.extend(told);
    }
    assert_eq!(narrow.iter().map(|n| n.0).collect::<Vec<_>>(), [3, 4]);
    assert!(matches!(come(&mut s, 5000, 5, 1), Start::Waits { .. }), "the spare is used up");
    let told = s.finish(ms(5001), &wide[0]);
    assert_eq!(told.iter().map(|t| t.0).collect::<Vec<_>>(), [2], "what wide ones leave goes to whose turn it is");
    let told = s.finish(ms(5002), &narrow[0].1);
    assert_eq!(told.iter().map(|t| t.0).collect::<Vec<_>>(), [5]);
}

#[test]
fn narrow_requests_do_not_keep_wide_ones_waiting() {
    // 40 narrow requests at a time beside wide ones that need more than half of what there is.
    let served = simulate(20, &[(40, 10, 1), (2, 10, 11)], 20_000);
    assert!(served[1] * 11 * 3 > served[0], "{served:?}");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// However wide and long the requests of a flood are and however many: who asks for little waits for one of them at
    /// most, those that began before it.
    #[test]
    fn flood_delays_other_flows_by_one_request(
        limit in 1_u32..200,
        flood in 1_usize..400,
        seats in 1_u32..20,
        lasts in 1_u64..60,
        come in 0_u64..300,
    ) {
        let waited = wait_beside(limit, flood, seats, lasts, come);
        proptest::prop_assert!(waited <= lasts, "{waited}");
    }

    /// Flows that have requests waiting all the time, even while they use all seats, share them evenly, whatever their
    /// requests are like.
    #[test]
    fn share_of_a_flow_is_independent_of_request_width(
        one in (17_usize..40, 5_u64..40, 1_u32..4),
        other in (17_usize..40, 5_u64..40, 1_u32..4),
    ) {
        let served = simulate(8, &[one, other], 20_000);
        let used = [served[0] * one.1 * u64::from(one.2), served[1] * other.1 * u64::from(other.2)];
        let (least, most) = (used[0].min(used[1]), used[0].max(used[1]));
        proptest::prop_assert!(most * 10 <= least * 13, "{served:?} {used:?}");
    }
}
