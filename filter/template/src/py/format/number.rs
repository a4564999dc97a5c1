//! Digits of numbers for format specifications.

use minijinja::Error;

use super::{Spec, bad_spec};
use crate::py::repr::write_float;

/// Prefix (`0x` and the like) and digits of an integer's magnitude.
pub(super) fn int_text(magnitude: u128, spec: &Spec) -> (&'static str, String) {
    let (prefix, digits) = match spec.kind {
        Some('b') => ("0b", format!("{magnitude:b}")),
        Some('o') => ("0o", format!("{magnitude:o}")),
        Some('x') => ("0x", format!("{magnitude:x}")),
        Some('X') => ("0X", format!("{magnitude:X}")),
        _ => ("", magnitude.to_string()),
    };
    (if spec.is_alternate { prefix } else { "" }, digits)
}

/// Digits of a float that is not negative.
pub(super) fn float_text(float: f64, spec: &Spec) -> Result<(&'static str, String), Error> {
    let kind = spec.kind.unwrap_or(' ');
    if !matches!(kind, ' ' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'n' | '%') {
        return Err(bad_spec());
    }
    let is_upper = kind.is_ascii_uppercase();
    if !float.is_finite() {
        let text = if float.is_nan() { "nan" } else { "inf" };
        let text = if is_upper { text.to_uppercase() } else { text.to_owned() };
        return Ok(("", if kind == '%' { text + "%" } else { text }));
    }
    let precision = spec.precision.unwrap_or(6);
    let mut text = match kind {
        'f' | 'F' => format!("{float:.precision$}"),
        '%' => format!("{:.precision$}%", float * 100.0),
        'e' | 'E' => scientific(float, precision),
        'g' | 'G' | 'n' => general(float, precision, spec.is_alternate, false),
        _ => match spec.precision {
            // Without a type: like `repr`, or like `g` with one digit after the point at least.
            Some(precision) => general(float, precision, spec.is_alternate, true),
            None => {
                let mut text = String::new();
                write_float(&mut text, float);
                text
            }
        },
    };
    if spec.is_alternate && !text.contains('.') {
        let at = text.find(['e', '%']).unwrap_or(text.len());
        text.insert(at, '.');
    }
    Ok(("", if is_upper { text.to_uppercase() } else { text }))
}

/// `d.ddde+dd`.
fn scientific(float: f64, precision: usize) -> String {
    let text = format!("{float:.precision$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else {
        return text;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// The `g` format: significant digits, fixed or scientific by the exponent.
fn general(float: f64, precision: usize, keeps_zeros: bool, needs_point: bool) -> String {
    let digits = precision.max(1);
    let rounded = format!("{float:.*e}", digits - 1);
    let exponent = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok());
    let exponent: i64 = exponent.unwrap_or(0);
    let limit = i64::try_from(digits).unwrap_or(i64::MAX);
    // Without a type, the point and a digit behind it must fit too.
    let limit = if needs_point { limit.saturating_sub(1).max(1) } else { limit };
    let is_fixed = (-4..limit).contains(&exponent) || (needs_point && float == 0.0);
    let strip = |text: String| match text.contains('.') && !keeps_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if is_fixed {
        let decimals =
            i64::try_from(digits).unwrap_or(0).saturating_sub(1).saturating_sub(exponent);
        let decimals = usize::try_from(decimals).unwrap_or(0);
        let text = strip(format!("{float:.decimals$}"));
        return if needs_point && !text.contains('.') { text + ".0" } else { text };
    }
    let text = scientific(float, digits - 1);
    match text.split_once('e') {
        Some((mantissa, power)) => format!("{}e{power}", strip(mantissa.to_owned())),
        None => text,
    }
}

/// Puts separators into the whole part, and leading zeros where the width asks for them between.
pub(super) fn group(digits: &str, spec: &Spec, sign_len: usize) -> String {
    let Some(separator) = spec.grouping else {
        return digits.to_owned();
    };
    let is_power_of_two = matches!(spec.kind, Some('b' | 'o' | 'x' | 'X'));
    let size = if is_power_of_two { 4 } else { 3 };
    let whole_len = match is_power_of_two {
        true => digits.len(),
        false => digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len()),
    };
    let (whole, tail) = digits.split_at_checked(whole_len).unwrap_or((digits, ""));
    let grouped = |count: usize| count + count.saturating_sub(1) / size;
    let mut count = whole.len();
    if spec.fill == '0' && matches!(spec.align, Some('0' | '=')) {
        while grouped(count) + tail.len() + sign_len < spec.width {
            count += 1;
        }
    }
    let padded = format!("{}{whole}", "0".repeat(count - whole.len()));
    let mut out = String::with_capacity(grouped(count) + tail.len());
    for (at, digit) in padded.chars().enumerate() {
        if at > 0 && (count - at) % size == 0 {
            out.push(separator);
        }
        out.push(digit);
    }
    out + tail
}
