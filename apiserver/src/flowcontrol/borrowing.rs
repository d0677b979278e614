//! Priority levels lend each other seats: every ten seconds the limits follow what each level wanted lately, between
//! the bounds of its configuration. Pure. Answers for upstream's `pkg/util/flowcontrol` (`updateBorrowing`,
//! `computeConcurrencyAllocation`).

use std::time::Duration;

/// Weight of the past in the smoothed demand.
const SMOOTHING: f64 = 0.977;
/// The least a level is taken to want, so that shares can be formed.
const LEAST_TARGET: f64 = 0.001;
/// Sums that differ by less are equal.
const EPSILON: f64 = 0.000_000_1;

/// Follows a value through time: its average, deviation and highest mark.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Integrator {
    at: Duration,
    value: f64,
    elapsed: f64,
    sum: f64,
    squares: f64,
    highest: f64,
}

/// Observations of an [`Integrator`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct IntegratorResults {
    elapsed: f64,
    average: f64,
    deviation: f64,
    highest: f64,
}

impl Integrator {
    pub(super) fn set(&mut self, now: Duration, value: f64) {
        self.advance(now);
        self.value = value;
        self.highest = self.highest.max(value);
    }

    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.elapsed += passed;
        self.sum += self.value * passed;
        self.squares += self.value * self.value * passed;
    }

    /// Returns the observations since the last call; the value stays.
    pub(super) fn take_observations(&mut self, now: Duration) -> IntegratorResults {
        self.advance(now);
        let mut seen =
            IntegratorResults { elapsed: self.elapsed, highest: self.highest, ..IntegratorResults::default() };
        if self.elapsed > 0.0 {
            seen.average = self.sum / self.elapsed;
            seen.deviation = (self.squares / self.elapsed - seen.average * seen.average).max(0.0).sqrt();
        }
        *self = Self { at: self.at, value: self.value, highest: self.value, ..Self::default() };
        seen
    }
}

/// Recent demand of a priority level.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct DemandStats {
    /// The most seats wanted at once in the last period.
    pub(super) highest: f64,
    pub(super) average: f64,
    pub(super) deviation: f64,
    /// Average and deviation, falling slowly.
    pub(super) smoothed: f64,
}

impl DemandStats {
    pub(super) fn update(&mut self, seen: &IntegratorResults) {
        self.highest = seen.highest.round();
        if seen.elapsed <= 0.0 {
            return;
        }
        self.average = seen.average;
        self.deviation = seen.deviation;
        let envelope = seen.average + seen.deviation;
        self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
    }
}

/// The limits a configuration gives a level, in seats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Share of the level in the server's seats.
    pub(super) nominal: u32,
    /// Minimum limit, when all that may be lent is lent.
    pub(super) least: u32,
    /// Maximum limit, when all that may be borrowed is borrowed.
    pub(super) most: u32,
}

impl Bounds {
    /// From shares and percentages, on a server with `total` seats.
    pub(super) fn new(total: u32, share: f64, lendable: u32, borrowing: Option<u32>) -> Self {
        let nominal = whole((f64::from(total) * share).ceil());
        let part = |percent: u32| whole((f64::from(nominal) * f64::from(percent) / 100.0).round());
        let most = nominal.saturating_add(borrowing.map_or(total, part));
        Self { nominal, least: nominal.saturating_sub(part(lendable)), most }
    }

    /// The limit before anything is known of the demand: half of what may be lent is.
    pub(super) fn initial(&self) -> u32 {
        self.nominal - (self.nominal - self.least) / 2
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate")]
fn whole(value: f64) -> u32 {
    // Casts of floats saturate.
    value as u32
}

/// One level to divide seats for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) bounds: Bounds,
    pub(super) demand: DemandStats,
    /// Takes what it wants.
    pub(super) exempt: bool,
}

impl Claim {
    /// Minimum current limit: the recent peak of demand, within the nominal limit.
    fn floor(&self) -> u32 {
        whole(self.demand.highest).min(self.bounds.nominal).max(self.bounds.least)
    }

    /// Target of the allocation: smoothed demand, at least the minimum current limit.
    pub(super) fn target(&self) -> f64 {
        self.demand.smoothed.max(f64::from(self.floor()))
    }
}

/// Seats by level, in the order given, and the fraction of its target each gets where bounds do not interfere.
/// `current` are the limits to fall back on.
pub(super) fn divide(claims: &[Claim], current: &[u32]) -> (Vec<u32>, f64) {
    let total: u32 = claims.iter().map(|c| c.bounds.nominal).sum();
    let exempt: u32 = claims.iter().filter(|c| c.exempt).map(Claim::floor).sum();
    let limited: Vec<&Claim> = claims.iter().filter(|c| !c.exempt).collect();
    let left = total.saturating_sub(exempt);
    let least: u32 = limited.iter().map(|c| c.bounds.least).sum();
    let floors: u32 = limited.iter().map(|c| c.floor()).sum();
    let mut fair = 0.0;
    let mut seats: Vec<u32> = if left <= least {
        limited.iter().map(|c| c.bounds.least).collect()
    } else if left <= floors {
        let share = f64::from(left - least) / f64::from(floors - least);
        let of = |c: &&Claim| c.bounds.least + whole((f64::from(c.floor() - c.bounds.least) * share).round());
        limited.iter().map(of).collect()
    } else {
        match allocate(left, &limited) {
            Some((seats, fraction)) => {
                fair = fraction;
                seats
            }
            None => claims.iter().zip(current).filter(|(c, _)| !c.exempt).map(|(_, s)| *s).collect(),
        }
    };
    seats.reverse();
    let all = claims.iter().map(|c| if c.exempt { c.floor() } else { seats.pop().unwrap_or(c.bounds.least) });
    (all.collect(), fair)
}

/// Finds the fraction at which `fraction × target`, kept within each claim's bounds, adds up to `total`.
fn allocate(total: u32, claims: &[&Claim]) -> Option<(Vec<u32>, f64)> {
    let total = f64::from(total);
    let lower = |c: &Claim| f64::from(c.floor());
    let upper = |c: &Claim| f64::from(c.bounds.most);
    let target = |c: &Claim| c.target().max(LEAST_TARGET);
    let at = |fraction: f64, c: &Claim| (fraction * target(c)).clamp(lower(c), upper(c).max(lower(c)));
    let sum = |fraction: f64| claims.iter().map(|c| at(fraction, c)).sum::<f64>();
    let highest: f64 = claims.iter().map(|c| upper(c)).sum();
    if total - highest > EPSILON {
        return None;
    }
    // The sum grows piecewise linearly; between two neighbouring bends the fraction is found by proportion.
    let mut bends: Vec<f64> = claims.iter().flat_map(|c| [lower(c) / target(c), upper(c) / target(c)]).collect();
    bends.sort_by(f64::total_cmp);
    let after = bends.partition_point(|bend| sum(*bend) < total);
    let high = *bends.get(after)?;
    let low = if after == 0 { 0.0 } else { bends[after - 1] };
    let (from, to) = (sum(low), sum(high));
    let fraction = if to - from > EPSILON { low + (high - low) * (total - from) / (to - from) } else { high };
    Some((claims.iter().map(|c| whole(at(fraction, c).round())).collect(), fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(nominal: u32, least: u32, most: u32, wanted: f64) -> Claim {
        let demand = DemandStats { highest: wanted, average: wanted, deviation: 0.0, smoothed: wanted };
        Claim { bounds: Bounds { nominal, least, most }, demand, exempt: false }
    }

    #[test]
    fn bounds_of_the_default_levels() {
        // 245 shares on 600 seats.
        for (shares, lendable, want, initial) in [
            (100.0, 90, Bounds { nominal: 245, least: 24, most: 845 }, 135),
            (40.0, 50, Bounds { nominal: 98, least: 49, most: 698 }, 74),
            (5.0, 0, Bounds { nominal: 13, least: 13, most: 613 }, 13),
            (0.0, 0, Bounds { nominal: 0, least: 0, most: 600 }, 0),
        ] {
            let bounds = Bounds::new(600, shares / 245.0, lendable, None);
            assert_eq!((bounds, bounds.initial()), (want, initial), "{shares}");
        }
        assert_eq!(Bounds::new(600, 0.5, 0, Some(10)).most, 330);
    }

    #[test]
    fn the_busy_borrow_from_the_idle() {
        let claims = [claim(100, 10, 300, 400.0), claim(100, 50, 300, 0.0), claim(100, 100, 300, 0.0)];
        let (seats, fair) = divide(&claims, &[100; 3]);
        assert_eq!(seats, [150, 50, 100]);
        assert!(fair > 0.0 && fair < 1.0);
    }

    #[test]
    fn equal_wishes_get_equal_seats() {
        let (seats, _) = divide(&[claim(100, 0, 200, 200.0), claim(100, 0, 200, 200.0)], &[100; 2]);
        assert_eq!(seats, [100, 100]);
        let (seats, _) = divide(&[claim(100, 50, 200, 0.0), claim(100, 50, 200, 0.0)], &[100; 2]);
        assert_eq!(seats, [100, 100], "nobody wants anything");
    }

    #[test]
    fn the_exempt_take_first() {
        let exempt = Claim { exempt: true, ..claim(0, 0, 600, 50.0) };
        assert_eq!(divide(&[exempt, claim(100, 0, 700, 10.0)], &[0, 100]).0, [0, 100]);
        let owning = Claim { exempt: true, ..claim(60, 60, 600, 50.0) };
        assert_eq!(divide(&[owning, claim(40, 20, 700, 100.0)], &[60, 40]).0, [60, 40]);
    }

    #[test]
    fn demand_is_followed() {
        let mut integrator = Integrator::default();
        let at = Duration::from_secs;
        integrator.set(at(0), 10.0);
        integrator.set(at(5), 0.0);
        let seen = integrator.take_observations(at(10));
        assert_eq!((seen.average, seen.deviation, seen.highest), (5.0, 5.0, 10.0));
        let mut demand = DemandStats::default();
        demand.update(&seen);
        assert_eq!((demand.highest, demand.smoothed), (10.0, 10.0));
        demand.update(&integrator.take_observations(at(20)));
        assert_eq!((demand.highest, demand.average), (0.0, 0.0));
        assert!((demand.smoothed - 9.77).abs() < 1e-9);
    }
}
