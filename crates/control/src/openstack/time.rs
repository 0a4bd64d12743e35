//! Times as OpenStack writes them.

/// Seconds from 1970 to a time like `2026-11-23T10:42:32.000000Z`, which is UTC.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z').unwrap_or(text).split_once('T')?;
    let number = |part: &str| part.parse::<i64>().ok();
    let mut date = date.split('-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let time = time.split_once('.').map_or(time, |(whole, _)| whole);
    let mut time = time.split(':').map(number);
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let is_one =
        (1..=12).contains(&month) && (1..=31).contains(&day) && (1970..9999).contains(&year);
    if !is_one {
        return None;
    }
    // Years begin in March here, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let days_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + days_of_year - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00.000000Z", Some(951_825_600)),
            ("2001-09-09T01:46:40", Some(1_000_000_000)),
            ("2026-11-23T10:42:32.000000Z", Some(1_795_430_552)),
            ("2026-13-23T10:42:32Z", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
