//! Cron schedules: five fields or a descriptor. Error texts are those of the library upstream uses.

/// Lowest and highest value of each field.
const FIELDS: [(i64, i64, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// Checks a schedule.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    let mut rest = schedule;
    if rest.is_empty() {
        return Err("empty spec string".to_owned());
    }
    for prefix in ["TZ=", "CRON_TZ="] {
        if let Some(tail) = rest.strip_prefix(prefix) {
            let (zone, tail) = tail.split_once(' ').ok_or("missing spec after the time zone")?;
            check_zone(zone).map_err(|e| format!("provided bad location {zone}: {e}"))?;
            rest = tail.trim();
        }
    }
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (text, (low, high, names)) in fields.iter().zip(FIELDS) {
        for range in text.split(',').filter(|r| !r.is_empty()) {
            check_range(range, low, high, names)?;
        }
    }
    Ok(())
}

/// Checks a time zone's name.
pub(super) fn check_zone(name: &str) -> Result<(), String> {
    if name == "UTC" {
        return Ok(());
    }
    jiff::tz::TimeZone::get(name).map(|_| ()).map_err(|_| format!("unknown time zone {name}"))
}

fn descriptor(text: &str) -> Result<(), String> {
    match text {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => Ok(()),
        _ => match text.strip_prefix("@every ") {
            Some(duration) if is_duration(duration) => Ok(()),
            Some(duration) => Err(format!("failed to parse duration {text}: time: invalid duration {duration:?}")),
            None => Err(format!("unrecognized descriptor: {text}")),
        },
    }
}

fn is_duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['+', '-']);
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let after = &rest[digits..];
        let unit = ["ns", "us", "µs", "ms", "h", "m", "s"].into_iter().find(|u| after.starts_with(u));
        match unit {
            Some(unit) if digits > 0 => rest = &after[unit.len()..],
            _ => return false,
        }
    }
    true
}

fn number(text: &str, names: &[&str]) -> Result<i64, String> {
    let lower = text.to_lowercase();
    if let Some(i) = names.iter().position(|n| *n == lower) {
        // Months count from one, days from zero.
        return Ok(i64::try_from(i).unwrap_or_default() + i64::from(names.len() == 12));
    }
    let parsed: i64 = text
        .parse()
        .map_err(|_| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))?;
    if parsed < 0 { Err(format!("negative number ({parsed}) not allowed: {text}")) } else { Ok(parsed) }
}

fn check_range(expression: &str, low: i64, high: i64, names: &[&str]) -> Result<(), String> {
    let parts: Vec<&str> = expression.split('/').collect();
    let bounds: Vec<&str> = parts[0].split('-').collect();
    let (mut start, mut end) = (low, high);
    let single = bounds.len() == 1;
    if !matches!(bounds[0], "*" | "?") {
        start = number(bounds[0], names)?;
        end = match bounds.len() {
            1 => start,
            2 => number(bounds[1], names)?,
            _ => return Err(format!("too many hyphens: {expression}")),
        };
    }
    let mut step = 1;
    match parts.len() {
        1 => {}
        2 => {
            step = number(parts[1], &[])?;
            if single && !matches!(bounds[0], "*" | "?") {
                end = high;
            }
        }
        _ => return Err(format!("too many slashes: {expression}")),
    }
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {expression}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {expression}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {expression}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {expression}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn schedules() {
        for ok in ["*/5 * * * *", "0 0 1,15 * mon-fri", "@hourly", "@every 1h30m", "TZ=UTC 0 0 * * *", "5/10 ? * jan 0"]
        {
            assert_eq!(check(ok), Ok(()), "{ok}");
        }
        for (bad, want) in [
            ("nope", "expected exactly 5 fields, found 1: [nope]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("a * * * *", "failed to parse int from a: strconv.Atoi: parsing \"a\": invalid syntax"),
            ("@never", "unrecognized descriptor: @never"),
        ] {
            assert_eq!(check(bad), Err(want.to_owned()));
        }
    }
}
