//! Taints and tolerations.

use super::{Taint, Toleration};

/// Whether one toleration covers a taint (`Exists`, `Equal`, and the numeric `Lt` and `Gt`).
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let filled = |v: &Option<String>| v.as_deref().filter(|s| !s.is_empty()).map(str::to_owned);
    if filled(&toleration.effect).is_some_and(|e| e != taint.effect)
        || filled(&toleration.key).is_some_and(|k| k != taint.key)
    {
        return false;
    }
    let (wanted, value) = (toleration.value.as_deref().unwrap_or(""), taint.value.as_deref().unwrap_or(""));
    match toleration.operator.as_deref().unwrap_or("") {
        "" | "Equal" => wanted == value,
        "Exists" => true,
        "Lt" => compare(value, wanted, |t, w| t < w),
        "Gt" => compare(value, wanted, |t, w| t > w),
        _ => false,
    }
}

fn compare(taint: &str, wanted: &str, holds: impl Fn(i64, i64) -> bool) -> bool {
    matches!((taint.parse(), wanted.parse()), (Ok(t), Ok(w)) if holds(t, w))
}

/// The first taint among those `relevant` that no toleration covers.
pub fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
    relevant: impl Fn(&Taint) -> bool,
) -> Option<&'a Taint> {
    taints.iter().filter(|t| relevant(t)).find(|t| !tolerations.iter().any(|o| tolerates(o, t)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let taint = Taint { key: "k".into(), value: Some("v".into()), effect: "NoSchedule".into(), time_added: None };
        let t = |key: &str, op: &str, value: &str, effect: &str| Toleration {
            key: Some(key.into()),
            operator: Some(op.into()),
            value: Some(value.into()),
            effect: Some(effect.into()),
            toleration_seconds: None,
        };
        for (toleration, want) in [
            (t("k", "Equal", "v", "NoSchedule"), true),
            (t("k", "", "v", ""), true),
            (t("", "Exists", "", ""), true),
            (t("k", "Equal", "x", ""), false),
            (t("k", "Exists", "", "NoExecute"), false),
        ] {
            assert_eq!(tolerates(&toleration, &taint), want, "{toleration:?}");
        }
    }
}
