//! The pages of `/debug/api_priority_and_fairness/`: levels, queues and requests as comma-separated columns. Answers
//! for upstream's `pkg/util/flowcontrol/apf_controller_debug.go`.

use std::sync::Arc;
use std::time::Duration;

use super::level::LevelView;
use super::queues::{QueueMode, QueueSums};
use super::work::Work;
use super::{Clock, FlowControl, RequestFlow};

/// Narrowest column, and the space after each cell, as Go's tab writer is set up upstream.
const MIN_WIDTH: usize = 8;
const PADDING: usize = 1;

/// Cells as aligned lines: every cell but the last of a line ends with a comma.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter(|r| r.len() > column + 1).map(|r| r[column].chars().count() + 1);
        (cells.max().unwrap_or(0) + PADDING).max(MIN_WIDTH)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            if i + 1 == row.len() {
                out.push_str(cell);
            } else {
                let cell = format!("{cell},");
                out.push_str(&format!("{cell:<width$}", width = widths[i]));
            }
        }
        out.push('\n');
    }
    out
}

fn row(cells: &[&dyn std::fmt::Display]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

fn header(names: &str) -> Vec<String> {
    names.split(' ').map(str::to_owned).collect()
}

fn seat_seconds(value: f64) -> String {
    format!("{value:.8}ss")
}

/// A time as upstream writes it: nanoseconds without trailing zeros.
fn time(at: jiff::Timestamp) -> String {
    at.to_string()
}

impl FlowControl {
    /// The page of this name.
    pub fn dump(&self, page: &str, details: bool) -> Option<String> {
        let state = self.state.read().clone();
        let sights = state.levels.values();
        match page {
            "dump_priority_levels" => {
                let mut rows = vec![header(
                    "PriorityLevelName ActiveQueues IsIdle IsQuiescing WaitingRequests ExecutingRequests DispatchedRequests RejectedRequests TimedoutRequests CancelledRequests",
                )];
                rows.extend(sights.map(|level| level.with_view(of_level)));
                Some(table(&rows))
            }
            "dump_queues" => {
                let mut rows = vec![header(
                    "PriorityLevelName Index PendingRequests ExecutingRequests SeatsInUse NextDispatchR InitialSeatsSum MaxSeatsSum TotalWorkSum",
                )];
                rows.extend(sights.flat_map(|level| level.with_view(of_queues)));
                Some(table(&rows))
            }
            "dump_requests" => {
                let mut names = "PriorityLevelName FlowSchemaName QueueIndex RequestIndexInQueue FlowDistingsher ArriveTime InitialSeats FinalSeats AdditionalLatency StartTime".to_owned();
                if details {
                    names.push_str(" UserName Verb APIPath Namespace Name APIVersion Resource SubResource");
                }
                let mut rows = vec![header(&names)];
                rows.extend(sights.flat_map(|level| level.with_view(|s| of_requests(s, details))));
                Some(table(&rows))
            }
            _ => None,
        }
    }
}

fn of_level(s: &LevelView<'_>) -> Vec<String> {
    let active = s.busy.iter().filter(|(_, q)| q.waiting > 0).count();
    let idle = s.waiting == 0 && s.executing == 0;
    let c = &s.counts;
    row(&[
        &s.name,
        &active,
        &idle,
        &s.quiescing,
        &s.waiting,
        &s.executing,
        &c.dispatched,
        &c.refused,
        &c.timed_out,
        &c.cancelled,
    ])
}

fn of_queues(s: &LevelView<'_>) -> Vec<Vec<String>> {
    let QueueMode::Queue { queues, .. } = s.mode else { return Vec::new() };
    let last = s.busy.last().map_or(queues, |(at, _)| queues.max(at + 1));
    let mut busy = s.busy.iter().peekable();
    (0..last)
        .map(|at| {
            let q = busy.next_if(|(other, _)| *other == at).map_or_else(QueueSums::default, |(_, sums)| *sums);
            row(&[
                &s.name,
                &at,
                &q.waiting,
                &q.executing,
                &q.seats,
                &seat_seconds(q.next),
                &q.initial_seats,
                &q.widest_seats,
                &seat_seconds(q.cost),
            ])
        })
        .collect()
}

/// Position of a request: queue and index in it, -1 where there is none.
type QueuePosition = (i64, i64);

fn of_requests(s: &LevelView<'_>, details: bool) -> Vec<Vec<String>> {
    let line = |level: &str, at: QueuePosition, about: &Arc<RequestFlow>, work: &Work, started: Option<Duration>| {
        let start = match started {
            Some(at) => time(wall(s.clock, at)),
            None => "0001-01-01T00:00:00Z".to_owned(),
        };
        let tail = shared::flags::format_duration(work.tail);
        // Where there are no queues to choose from, nobody asks for it.
        let chosen = matches!(s.mode, QueueMode::Queue { queues, .. } if queues > 1);
        let distinguisher = if chosen { about.distinguisher.as_str() } else { "" };
        let mut cells = row(&[
            &level,
            &about.schema.spec.name,
            &at.0,
            &at.1,
            &distinguisher,
            &time(about.arrived),
            &work.seats,
            &work.last_seats,
            &tail,
            &start,
        ]);
        if details {
            let i = &about.info;
            let version = match i.api_group.as_str() {
                "" => i.api_version.clone(),
                group => format!("{group}/{}", i.api_version),
            };
            cells.extend(row(&[
                &about.user,
                &i.verb,
                &i.path,
                &i.namespace,
                &i.name,
                &version,
                &i.resource,
                &i.subresource,
            ]));
        }
        cells
    };
    let waiting = s.line.iter().map(|(queue, place, about, work)| {
        let at = (i64::from(*queue), i64::try_from(*place).unwrap_or(i64::MAX));
        (at, line(s.name, at, about, work, None))
    });
    let running = s.running.iter().map(|(about, grant)| {
        let at = (grant.queue.map_or(-1, i64::from), -1);
        (at, line(s.name, at, about, &grant.work, Some(grant.started)))
    });
    in_order(waiting.chain(running).collect())
}

/// Queue by queue, those who wait before those who are served; who came past the queues is first.
fn in_order(mut rows: Vec<(QueuePosition, Vec<String>)>) -> Vec<Vec<String>> {
    rows.sort_by_key(|((queue, place), _)| (*queue, *place < 0, *place));
    rows.into_iter().map(|(_, row)| row).collect()
}

fn wall(clock: &Clock, at: Duration) -> jiff::Timestamp {
    let ago = clock.now().saturating_sub(at);
    let now = jiff::Timestamp::now();
    now.checked_sub(jiff::SignedDuration::try_from(ago).unwrap_or_default()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [header("Name Index Last"), row(&[&"workload-low", &1, &"x"])];
        assert_eq!(table(&rows), "Name,         Index,  Last\nworkload-low, 1,      x\n");
        assert_eq!(seat_seconds(1_119.449_364_75), "1119.44936475ss");
    }

    #[test]
    fn requests_are_shown_by_queue() {
        let rows = [(7, -1), (6, 1), (-1, -1), (6, 0), (6, -1), (7, 0)].map(|at| (at, row(&[&at.0, &at.1])));
        let shown: Vec<String> = in_order(rows.into()).iter().map(|r| r.join(" ")).collect();
        assert_eq!(shown, ["-1 -1", "6 0", "6 1", "6 -1", "7 0", "7 -1"]);
    }
}
