//! An explanation for people.

use std::fmt::Write as _;

use crate::framework::explain::{Explanation, Objection, Verdict};

fn objection(o: &Objection) -> String {
    format!("{}: {}", o.plugin, o.reasons.join(", "))
}

fn why(v: &Verdict) -> String {
    if v.fits {
        let points = v.scores.iter().map(|p| format!("{} {}x{}", p.plugin, p.score, p.weight));
        points.collect::<Vec<_>>().join(", ")
    } else {
        v.objections.iter().map(objection).collect::<Vec<_>>().join("; ")
    }
}

/// A short text: what the scheduler would say, then a line for each node.
pub fn table(e: &Explanation) -> String {
    let mut out = format!("Pod:        {}\nScheduler:  {}\n", e.pod, e.scheduler_name);
    // Writing to a text cannot fail.
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(out, "{name:<12}{value}");
    };
    if let Some(node) = &e.bound_to {
        line("Bound to:", &format!("{node} (explained as if it were not)"));
    }
    if let Some(gate) = &e.gate {
        line("Gated by:", &objection(gate));
    }
    if let Some(refused) = &e.refused {
        line("Refused by:", &objection(refused));
    }
    line("Answer:", &e.message);
    if let Some(rescue) = &e.preemption {
        line("Preemption:", &format!("{} from {}", rescue.victims.join(", "), rescue.node));
    }
    if e.nodes.is_empty() {
        return out;
    }
    let width = e.nodes.iter().map(|n| n.node.len()).max().unwrap_or(0).max(4);
    let _ = writeln!(out, "\n{:width$}  FITS  SCORE  WHY", "NODE");
    for node in &e.nodes {
        let fits = if node.fits { "yes" } else { "no" };
        let total = node.total.map_or_else(|| "-".to_owned(), |t| t.to_string());
        let _ = writeln!(out, "{:width$}  {fits:<4}  {total:<5}  {}", node.node, why(node));
    }
    out
}
