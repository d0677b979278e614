//! Numbers of 16 bits.

/// The number 16 bits stand for.
pub(super) fn widened(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    sign * match exponent {
        0 => mantissa * 2_f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * 2_f64.powi(exponent - 25),
    }
}

/// The 16 bits that stand for exactly this number, if there are any.
pub(super) fn narrowed(number: f32) -> Option<u16> {
    let bits = number.to_bits();
    let sign = u16::try_from(bits >> 16 & 0x8000).ok()?;
    let (exponent, mantissa) = (i32::try_from(bits >> 23 & 0xff).ok()? - 127, bits & 0x7f_ffff);
    let magnitude = match exponent {
        _ if number == 0.0 => 0,
        -14..=15 => u16::try_from(exponent + 15).ok()? << 10 | u16::try_from(mantissa >> 13).ok()?,
        -24..=-15 => u16::try_from((mantissa | 0x80_0000) >> u32::try_from(-1 - exponent).ok()?).ok()?,
        _ => return None,
    };
    let bits = sign | magnitude;
    #[allow(clippy::float_cmp, reason = "it is the same number or it is not")]
    let same = widened(bits) == f64::from(number);
    same.then_some(bits)
}
