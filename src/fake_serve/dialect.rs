//! What each version of sglang says differently. Read in the published packages and, for 0.5.6, in recorded traffic.

use std::fmt;
use std::str::FromStr;

/// A version of sglang, by its way of speaking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Dialect {
    /// 0.4.9: no ids beside the text, the load as one number.
    V0_4_9,
    /// 0.5.2: events of a stream hold the new ids alone, and all of the text.
    V0_5_2,
    /// 0.5.6: the recorded one.
    #[default]
    V0_5_6,
    /// 0.5.10: a switch turns events into differences.
    V0_5_10,
    /// 0.5.15: with that switch, log-probabilities too are differences.
    V0_5_15,
    /// 0.5.23: a contract on what is asked, no `/get_load`, a prompt's rows by what was computed.
    V0_5_23,
}

/// A version that is not spoken here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no dialect of the fake serve: it speaks 0.4.9, 0.5.2, 0.5.6, 0.5.10, 0.5.15 and 0.5.23")]
pub struct UnknownDialect(String);

impl Dialect {
    /// All of them, oldest first.
    pub const ALL: [Self; 6] = [Self::V0_4_9, Self::V0_5_2, Self::V0_5_6, Self::V0_5_10, Self::V0_5_15, Self::V0_5_23];

    /// The version as sglang writes it.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::V0_4_9 => "0.4.9",
            Self::V0_5_2 => "0.5.2",
            Self::V0_5_6 => "0.5.6",
            Self::V0_5_10 => "0.5.10",
            Self::V0_5_15 => "0.5.15",
            Self::V0_5_23 => "0.5.23",
        }
    }

    /// A reply has `output_ids` beside `text`.
    pub(super) fn has_output_ids(self) -> bool {
        self >= Self::V0_5_2
    }

    /// The switch for differences in place of wholes, as `/get_server_info` names it.
    pub(super) fn incremental_switch(self) -> &'static str {
        if self >= Self::V0_5_10 { "incremental_streaming_output" } else { "stream_output" }
    }

    /// What an event of a stream tells as the difference to the one before, given the switch: text, ids, log-probabilities.
    /// Hidden states are always told whole.
    pub(super) fn differences(self, switch: bool) -> Differences {
        Differences {
            text: switch && self >= Self::V0_5_10,
            ids: self == Self::V0_5_2 || (switch && self >= Self::V0_5_6),
            logprobs: switch && self >= Self::V0_5_15,
        }
    }

    pub(super) fn has_weight_version(self) -> bool {
        self >= Self::V0_5_2
    }

    /// The key that counts how often a request lost its place.
    pub(super) fn retractions_key(self) -> Option<&'static str> {
        match self {
            Self::V0_4_9 | Self::V0_5_2 => None,
            Self::V0_5_6 | Self::V0_5_10 => Some("total_retractions"),
            Self::V0_5_15 | Self::V0_5_23 => Some("num_retractions"),
        }
    }

    /// `reasoning_tokens`, `output_token_logprobs_length`, `cached_tokens_details` and `dp_rank` are there.
    pub(super) fn has_details(self) -> bool {
        self >= Self::V0_5_10
    }

    /// `response_sent_to_client_ts`: on the only reply, or the first event.
    pub(super) fn tells_when_sent(self) -> bool {
        self >= Self::V0_5_6
    }

    /// An answer that was taken off the queue names its ids and its time.
    pub(super) fn tells_of_queued_aborts(self) -> bool {
        self >= Self::V0_5_6
    }

    /// What `finish_reason` says of such an answer.
    pub(super) fn queued_abort(self) -> &'static str {
        if self >= Self::V0_5_6 { "Abort in waiting queue" } else { "Abort before prefill" }
    }

    /// An abort with a status is an event of the stream. Below, it raises an exception, which breaks the stream.
    pub(super) fn streams_aborts(self) -> bool {
        self >= Self::V0_5_6
    }

    /// An error event of a stream names type and code.
    pub(super) fn types_stream_errors(self) -> bool {
        self >= Self::V0_5_23
    }

    /// The body is checked against a contract, whose complaint is a plain string.
    pub(super) fn has_contract(self) -> bool {
        self >= Self::V0_5_23
    }

    /// The parameter `sampling_seed` exists.
    pub(super) fn has_sampling_seed(self) -> bool {
        self >= Self::V0_5_6
    }

    /// The parameter `stop_regex` exists.
    pub(super) fn has_stop_regex(self) -> bool {
        self >= Self::V0_5_6
    }

    /// A second request with a live one's id is refused.
    pub(super) fn refuses_duplicates(self) -> bool {
        self >= Self::V0_5_10
    }

    /// `/server_info` and `/model_info` exist beside the older names.
    pub(super) fn has_short_names(self) -> bool {
        self >= Self::V0_5_6
    }

    /// `/get_load`: gone in 0.5.23, where `/v1/loads` tells more.
    pub(super) fn has_get_load(self) -> bool {
        self < Self::V0_5_23
    }

    /// `/v1/loads` exists.
    pub(super) fn has_v1_loads(self) -> bool {
        self >= Self::V0_5_10
    }

    /// `/ready` exists.
    pub(super) fn has_ready(self) -> bool {
        self >= Self::V0_5_23
    }

    /// A serve that starts answers `/health` with 503. Below, it answers 200 as soon as it listens.
    pub(super) fn health_tells_start(self) -> bool {
        self >= Self::V0_5_2
    }

    /// `return_hidden_states_mode` is a flag of the serve.
    pub(super) fn has_hidden_states_mode(self) -> bool {
        self >= Self::V0_5_23
    }

    /// A prompt that was read in parts has one matrix each. Below, the last part's alone is left.
    pub(super) fn keeps_prompt_parts(self) -> bool {
        self >= Self::V0_5_23
    }

    /// Hidden states are cut to as many elements as the answer has tokens, which drops rows where a prompt has several
    /// matrices.
    pub(super) fn cuts_elements(self) -> bool {
        self >= Self::V0_5_15
    }
}

/// Which parts of an event are differences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Differences {
    pub(super) text: bool,
    pub(super) ids: bool,
    pub(super) logprobs: bool,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version())
    }
}

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(text: &str) -> Result<Self, UnknownDialect> {
        Self::ALL.into_iter().find(|dialect| dialect.version() == text).ok_or_else(|| UnknownDialect(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_versions() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.version().parse(), Ok(dialect));
        }
        let error = "0.5.7".parse::<Dialect>().unwrap_err().to_string();
        assert!(error.contains("0.5.7") && error.contains("0.5.23"), "{error}");
    }

    #[test]
    fn events_are_wholes_or_differences_as_the_version_has_it() {
        let parts = |dialect: Dialect, switch| {
            let Differences { text, ids, logprobs } = dialect.differences(switch);
            (text, ids, logprobs)
        };
        for switch in [false, true] {
            assert_eq!(parts(Dialect::V0_4_9, switch), (false, false, false));
            assert_eq!(parts(Dialect::V0_5_2, switch), (false, true, false));
            assert_eq!(parts(Dialect::V0_5_6, switch), (false, switch, false));
            assert_eq!(parts(Dialect::V0_5_10, switch), (switch, switch, false));
            assert_eq!(parts(Dialect::V0_5_15, switch), (switch, switch, switch));
            assert_eq!(parts(Dialect::V0_5_23, switch), (switch, switch, switch));
        }
    }
}
