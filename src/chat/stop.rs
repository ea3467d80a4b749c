//! Stop strings in a stream of text.

/// Lets text through until a stop string appears, and holds back what might be the start of one.
#[derive(Debug)]
pub(super) struct StopFilter {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopFilter {
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), stopped: false }
    }

    /// Adds text; gives what may be shown: everything before the first stop string, if there is one.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(text);
        let first = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        let certain = match first {
            Some(at) => {
                self.stopped = true;
                at
            }
            None => self.held.len() - self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0),
        };
        let rest = self.held.split_off(certain);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether a stop string has appeared.
    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    /// What was held back, once no more text comes.
    pub(super) fn finish(&mut self) -> String {
        if self.stopped { String::new() } else { std::mem::take(&mut self.held) }
    }
}

/// Bytes at the end of `text` that begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = stop.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut filter = StopFilter::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut shown: Vec<String> = pieces.iter().map(|piece| filter.push(piece)).collect();
        shown.push(filter.finish());
        (shown, filter.stopped())
    }

    #[test]
    fn a_stop_string_over_piece_borders_ends_the_text_before_it() {
        let (shown, stopped) = run(&["END", "\n\n"], &["one E", "N", "D two"]);
        assert_eq!((shown.concat().as_str(), stopped), ("one ", true));
        assert_eq!(shown[0], "one ");
    }

    #[test]
    fn what_only_began_like_a_stop_is_shown_in_the_end() {
        assert_eq!(
            run(&["END"], &["one EN", "E", "N"]),
            (vec!["one ".into(), "EN".into(), "".into(), "EN".into()], false)
        );
    }

    #[test]
    fn the_earliest_of_several_wins() {
        assert_eq!(run(&["cd", "bc"], &["abcd"]).0.concat(), "a");
    }

    #[test]
    fn overlaps_of_many_bytes_stay_on_character_borders() {
        let (shown, stopped) = run(&["é!"], &["xé", "y"]);
        assert_eq!((shown.concat().as_str(), stopped), ("xéy", false));
        let (shown, _) = run(&["è"], &["é", "z"]);
        assert_eq!(shown.concat(), "éz");
    }
}
