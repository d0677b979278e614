//! Figures of benchmarks, one JSON line each.

use serde_json::json;

/// Prints a figure with three decimals, and the limit that it is held to.
pub fn figure(name: &str, value: f64, unit: &str, limit: Option<f64>) {
    println!("{}", json!({"name": name, "value": (value * 1000.0).round() / 1000.0, "unit": unit, "limit": limit}));
}

/// Returns the middle value, the upper one of two; not a number where there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
