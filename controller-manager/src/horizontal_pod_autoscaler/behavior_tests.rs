//! Stabilisation, rates and bounds, as "Configurable scaling behavior" describes them.

use super::*;
use serde_json::{Value, json};

fn at(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

fn behavior(v: Value) -> HorizontalPodAutoscalerBehavior {
    serde_json::from_value(v).expect("behavior")
}

const WINDOW: Duration = Duration::from_secs(300);

fn wish(current: i32, desired: i32) -> Wish {
    Wish { current, desired, min: 1, max: 100 }
}

#[test]
fn without_behavior_growth_is_bounded_and_shrinking_waits() {
    for (current, desired, replicas, limited, reason) in [
        (3, 5, 5, false, "DesiredWithinRange"),
        (3, 50, 6, true, "ScaleUpLimit"),
        (1, 50, 4, true, "ScaleUpLimit"),
        (60, 150, 100, true, "TooManyReplicas"),
        (3, 0, 1, true, "TooFewReplicas"),
    ] {
        let v = judge(&mut History::default(), None, wish(current, desired), WINDOW, at(0));
        assert_eq!((v.replicas, v.limited, v.limit.0), (replicas, limited, reason), "{current} to {desired}");
        assert_eq!(v.able.0, "ReadyForNewScale");
    }
}

#[test]
fn the_highest_recommendation_of_the_window_holds() {
    let mut h = History::default();
    h.begin(5, at(0));
    let look = |h: &mut History, desired, t| judge(h, None, wish(5, desired), WINDOW, at(t));
    let v = look(&mut h, 2, 15);
    assert_eq!((v.replicas, v.able.0), (5, "ScaleDownStabilized"), "the first sight counts");
    assert_eq!(look(&mut h, 3, 301).replicas, 3, "what is older than the window does not");
    assert_eq!(look(&mut h, 1, 302).replicas, 3);
    assert!(h.recommendations.len() <= 3, "old entries are written over");
}

#[test]
fn windows_of_a_behavior() {
    let b = behavior(
        json!({"scaleUp": {"stabilizationWindowSeconds": 60}, "scaleDown": {"stabilizationWindowSeconds": 120}}),
    );
    let mut h = History::default();
    h.begin(4, at(0));
    let look = |h: &mut History, current, desired, t| judge(h, Some(&b), wish(current, desired), WINDOW, at(t));
    let v = look(&mut h, 4, 8, 30);
    assert_eq!((v.replicas, v.able.0), (4, "ScaleUpStabilized"), "4 was recommended within the minute");
    assert_eq!(look(&mut h, 4, 8, 90).replicas, 8, "by now nothing lower was recommended within the minute");
    assert_eq!(look(&mut h, 8, 2, 100).replicas, 8, "the highest of two minutes");
    assert_eq!(look(&mut h, 8, 2, 230).replicas, 2);
}

#[test]
fn rates() {
    let policies = |select: &str| {
        json!({"selectPolicy": select, "stabilizationWindowSeconds": 0, "policies": [
            {"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 10, "periodSeconds": 60}]})
    };
    for (select, current, up, down) in
        [("Max", 80, 88, 72), ("Max", 10, 14, 6), ("Min", 80, 84, 76), ("Min", 10, 11, 9), ("Disabled", 10, 10, 10)]
    {
        let b = behavior(json!({"scaleUp": policies(select), "scaleDown": policies(select)}));
        let v = judge(&mut History::default(), Some(&b), wish(current, 100), WINDOW, at(0));
        assert_eq!((v.replicas, v.limit.0), (up, "ScaleUpLimit"), "{select} up from {current}");
        let v = judge(&mut History::default(), Some(&b), wish(current, 1), WINDOW, at(0));
        assert_eq!((v.replicas, v.limit.0), (down, "ScaleDownLimit"), "{select} down from {current}");
    }
}

#[test]
fn a_period_counts_from_its_start() {
    let b = behavior(json!({"scaleUp": {"stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 5, "periodSeconds": 60}]}}));
    let mut h = History::default();
    let look = |h: &mut History, current, t| {
        let v = judge(h, Some(&b), wish(current, 90), WINDOW, at(t));
        h.scaled(Some(&b), current, v.replicas, at(t));
        v.replicas
    };
    assert_eq!(look(&mut h, 10, 0), 15);
    assert_eq!(judge(&mut h, Some(&b), wish(15, 90), WINDOW, at(15)).replicas, 15, "five a minute, and no more");
    assert_eq!(look(&mut h, 15, 61), 20);
    assert_eq!(h.ups.len(), 1, "changes of the past are written over");
    h.scaled(None, 1, 2, at(62));
    assert_eq!(h.ups.len(), 1, "nobody asks without a behavior");
}

#[test]
fn silent_rules_have_defaults() {
    let b = behavior(json!({"scaleDown": {}}));
    let v = judge(&mut History::default(), Some(&b), wish(1, 90), WINDOW, at(0));
    assert_eq!(v.replicas, 5, "four pods or the double, whatever is more");
    let v = judge(&mut History::default(), Some(&b), wish(50, 1), WINDOW, at(0));
    assert_eq!((v.replicas, v.limited), (1, false), "all of them at once, when the window is over");
}

#[test]
fn more_than_there_can_be() {
    const HALF: i32 = 1 << 30;
    let wish = |current| Wish { current, desired: i32::MAX, min: 1, max: i32::MAX };
    let v = judge(&mut History::default(), None, wish(HALF), WINDOW, at(0));
    assert_eq!((v.replicas, v.limit.0), (i32::MIN, "ScaleUpLimit"), "twice as many is nothing");
    let up = |kind: &str, value: i32| {
        json!({"scaleUp": {"stabilizationWindowSeconds": 0,
            "policies": [{"type": kind, "value": value, "periodSeconds": 60}]}})
    };
    for (kind, value, replicas) in
        [("Percent", 200, HALF), ("Pods", i32::MAX, HALF), ("Percent", 50, HALF + HALF / 2), ("Pods", 7, HALF + 7)]
    {
        let v = judge(&mut History::default(), Some(&behavior(up(kind, value))), wish(HALF), WINDOW, at(0));
        assert_eq!((v.replicas, v.limit.0), (replicas, "ScaleUpLimit"), "{kind} {value}");
    }
}
