//! Civil time and `strftime`, without a clock.
//!
//! The caller brings the time; templates read it through `strftime_now`. The
//! format codes are those of C in the "C" locale, as CPython on Linux has them.

use std::fmt::Write;

/// A civil date and time, as Python's naive `datetime.now()` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CivilTime {
    /// Year, 1 to 9999.
    pub year: i32,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, 1 to 31.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute, 0 to 59.
    pub minute: u8,
    /// Second, 0 to 59.
    pub second: u8,
    /// Microsecond, 0 to 999,999.
    pub microsecond: u32,
}

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl CivilTime {
    /// The civil time of a Unix time, in a zone that is `offset_s` seconds ahead of UTC.
    ///
    /// Days are turned into dates with the 400-year cycle of the Gregorian calendar, counted
    /// from 1 March, so that the leap day is the last of its year.
    #[must_use]
    pub fn from_unix(unix_s: i64, microsecond: u32, offset_s: i32) -> Self {
        let local_s = unix_s.saturating_add(i64::from(offset_s));
        let days = local_s.div_euclid(86_400);
        let second_of_day = local_s.rem_euclid(86_400);
        // 719468 days lie between 0000-03-01 and 1970-01-01.
        let shifted = days.saturating_add(719_468);
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era.saturating_mul(400) + i64::from(month <= 2);
        Self {
            year: i32::try_from(year).unwrap_or(9999),
            month: u8::try_from(month).unwrap_or(1),
            day: u8::try_from(day).unwrap_or(1),
            hour: u8::try_from(second_of_day / 3600).unwrap_or(0),
            minute: u8::try_from(second_of_day / 60 % 60).unwrap_or(0),
            second: u8::try_from(second_of_day % 60).unwrap_or(0),
            microsecond: microsecond.min(999_999),
        }
    }

    fn is_leap(self) -> bool {
        (self.year % 4 == 0 && self.year % 100 != 0) || self.year % 400 == 0
    }

    /// Day of the year, from 1.
    fn day_of_year(self) -> i32 {
        let month = i32::from(self.month.clamp(1, 12));
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]
            .get(usize::from(self.month.clamp(1, 12)) - 1)
            .copied()
            .unwrap_or(0);
        before + i32::from(self.day) + i32::from(month > 2 && self.is_leap())
    }

    /// Day of the week, 0 for Sunday (Sakamoto's method).
    fn weekday(self) -> i32 {
        let shift = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4]
            .get(usize::from(self.month.clamp(1, 12)) - 1)
            .copied()
            .unwrap_or(0);
        let year = self.year.clamp(1, 9999) - i32::from(self.month < 3);
        (year + year / 4 - year / 100 + year / 400 + shift + i32::from(self.day)).rem_euclid(7)
    }

    /// ISO 8601 week: (year, week).
    fn iso_week(self) -> (i32, i32) {
        let weekday_from_monday = (self.weekday() + 6) % 7;
        let week = (self.day_of_year() - 1 - weekday_from_monday + 10) / 7;
        if week < 1 {
            let previous = Self { year: self.year.saturating_sub(1), month: 12, day: 31, ..self };
            (self.year.saturating_sub(1), previous.iso_week().1)
        } else if week == 53 && i32::from(self.day) + 3 - weekday_from_monday > 31 {
            // The Thursday of this week falls into the next year.
            (self.year.saturating_add(1), 1)
        } else {
            (self.year, week)
        }
    }

    /// Formats as `datetime.strftime` does. `None` for a code that is not supported here.
    #[must_use]
    pub fn strftime(self, format: &str) -> Option<String> {
        let mut out = String::with_capacity(format.len() + 16);
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next()?;
            let mut pad = None;
            if matches!(code, '-' | '_' | '0' | '^') {
                pad = Some(code);
                code = chars.next()?;
            }
            self.write_code(&mut out, code, pad)?;
        }
        Some(out)
    }

    fn write_code(self, out: &mut String, code: char, pad: Option<char>) -> Option<()> {
        let day = DAYS.get(usize::try_from(self.weekday()).ok()?)?;
        let month = MONTHS.get(usize::from(self.month.clamp(1, 12)) - 1)?;
        let hour12 = match self.hour % 12 {
            0 => 12,
            hour => hour,
        };
        let meridiem = if self.hour < 12 { "AM" } else { "PM" };
        let text = |out: &mut String, text: &str| {
            if pad == Some('^') {
                out.push_str(&text.to_uppercase());
            } else {
                out.push_str(text);
            }
        };
        match code {
            'a' => text(out, day.get(..3)?),
            'A' => text(out, day),
            'b' | 'h' => text(out, month.get(..3)?),
            'B' => text(out, month),
            'p' => text(out, meridiem),
            'P' => out.push_str(&meridiem.to_lowercase()),
            '%' => out.push('%'),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'Z' | 'z' => {}
            'f' => write!(out, "{:06}", self.microsecond).ok()?,
            'Y' => write!(out, "{}", self.year).ok()?,
            'c' => out.push_str(&self.strftime("%a %b %e %H:%M:%S %Y")?),
            'x' | 'D' => out.push_str(&self.strftime("%m/%d/%y")?),
            'X' | 'T' => out.push_str(&self.strftime("%H:%M:%S")?),
            'R' => out.push_str(&self.strftime("%H:%M")?),
            'r' => out.push_str(&self.strftime("%I:%M:%S %p")?),
            'F' => out.push_str(&self.strftime("%Y-%m-%d")?),
            'e' => number(out, i32::from(self.day), 2, pad.or(Some('_'))),
            'k' => number(out, i32::from(self.hour), 2, pad.or(Some('_'))),
            'l' => number(out, i32::from(hour12), 2, pad.or(Some('_'))),
            'd' => number(out, i32::from(self.day), 2, pad),
            'm' => number(out, i32::from(self.month), 2, pad),
            'y' => number(out, self.year.rem_euclid(100), 2, pad),
            'C' => number(out, self.year.div_euclid(100), 2, pad),
            'H' => number(out, i32::from(self.hour), 2, pad),
            'I' => number(out, i32::from(hour12), 2, pad),
            'M' => number(out, i32::from(self.minute), 2, pad),
            'S' => number(out, i32::from(self.second), 2, pad),
            'j' => number(out, self.day_of_year(), 3, pad),
            'w' => number(out, self.weekday(), 1, pad),
            'u' => number(out, (self.weekday() + 6) % 7 + 1, 1, pad),
            'U' => number(out, (self.day_of_year() + 6 - self.weekday()) / 7, 2, pad),
            'W' => number(out, (self.day_of_year() + 6 - (self.weekday() + 6) % 7) / 7, 2, pad),
            'V' => number(out, self.iso_week().1, 2, pad),
            'G' => number(out, self.iso_week().0, 4, pad),
            'g' => number(out, self.iso_week().0.rem_euclid(100), 2, pad),
            _ => return None,
        }
        Some(())
    }
}

fn number(out: &mut String, value: i32, width: usize, pad: Option<char>) {
    // Writing to a string cannot fail.
    let _ = match pad {
        Some('-') => write!(out, "{value}"),
        Some('_') => write!(out, "{value:width$}"),
        _ => write!(out, "{value:0width$}"),
    };
}
