//! Seconds since 1970 as a date, which is all of a calendar that a report needs.

const DAY: u64 = 24 * 60 * 60;
/// The year 10000, from which on no clock is believed.
const END: u64 = 253_402_300_800;

/// `2026-01-05 12:00 UTC`; `None` for a time that no clock shows.
pub(super) fn utc(seconds: u64) -> Option<String> {
    if seconds >= END {
        return None;
    }
    let (mut days, rest) = (seconds / DAY, seconds % DAY);
    let mut year = 1970;
    while days >= year_length(year) {
        days -= year_length(year);
        year += 1;
    }
    let mut month = 1;
    while days >= month_length(year, month) {
        days -= month_length(year, month);
        month += 1;
    }
    Some(format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", days + 1, rest / 3600, rest % 3600 / 60))
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_length(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_length(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_as_calendars_do() {
        let said = |seconds| utc(seconds).unwrap();
        assert_eq!(said(0), "1970-01-01 00:00 UTC");
        assert_eq!(said(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(said(1_767_225_599), "2025-12-31 23:59 UTC");
        assert_eq!(said(4_107_542_400), "2100-03-01 00:00 UTC");
        assert_eq!(said(END - 1), "9999-12-31 23:59 UTC");
        assert_eq!(utc(END), None);
    }
}
