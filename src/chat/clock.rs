//! `strftime_now` of chat templates: Llama 3 and others write today's date into the prompt.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

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
/// The first of January 1970 was a Thursday.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The time now, in UTC, as Python's `strftime` writes it; directives that no template of ours has shown stay as they are.
pub(super) fn strftime_now(format: &str) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    strftime(format, seconds)
}

/// Seconds since 1970 as text.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        let directive = if letter == '%' { letters.next() } else { None };
        // Writing to a string cannot fail.
        let _ = match directive {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b') => write!(out, "{}", &month_name[..3]),
            Some('d') => write!(out, "{day:02}"),
            Some('A') => write!(out, "{weekday}"),
            Some('a') => write!(out, "{}", &weekday[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{:02}", second % 60),
            Some('%') => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
            None => write!(out, "{letter}"),
        };
    }
    out
}

/// Year, month and day of a day after the first of January 1970, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // 400 years have this many days, whichever they are.
    const CYCLE: u64 = 146_097;
    let (mut year, mut day) = (1970 + days / CYCLE * 400, days % CYCLE);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected: Python's datetime.fromtimestamp(seconds, timezone.utc).strftime(format).
    #[test]
    fn as_pythons() {
        let all = "%A %a %d %B %b %Y %y %m %H:%M:%S %I %p 100%% %Z%";
        for (seconds, want) in [
            (0, "Thursday Thu 01 January Jan 1970 70 01 00:00:00 12 AM 100% %Z%"),
            (951_782_399, "Monday Mon 28 February Feb 2000 00 02 23:59:59 11 PM 100% %Z%"),
            (951_782_400, "Tuesday Tue 29 February Feb 2000 00 02 00:00:00 12 AM 100% %Z%"),
            (1_796_040_000, "Monday Mon 30 November Nov 2026 26 11 12:00:00 12 PM 100% %Z%"),
            (4_107_542_400, "Monday Mon 01 March Mar 2100 00 03 00:00:00 12 AM 100% %Z%"),
            (13_569_465_599, "Friday Fri 31 December Dec 2399 99 12 23:59:59 11 PM 100% %Z%"),
        ] {
            assert_eq!(strftime(all, seconds), want, "{seconds}");
        }
        assert_eq!(strftime_now("%Y").len(), 4);
    }
}
