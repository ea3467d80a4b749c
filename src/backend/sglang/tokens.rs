//! The ids of an answer, from events that tell them whole or piece by piece.

use super::fault::Fault;
use super::reply::{Logprob, Meta, Reply};
use crate::backend::TokenLogprobs;

/// What is known of a call's ids.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    pub(super) logprobs: Vec<TokenLogprobs>,
}

impl Tokens {
    /// Adds what a reply tells beyond what is known.
    ///
    /// Versions and flags differ in whether an event tells all ids or those since the last event. `completion_tokens` counts all
    /// in every version, and settles it; where it is missing, a list that begins as the known ids do tells all.
    pub(super) fn take(&mut self, reply: &Reply) -> Result<(), Fault> {
        let Reply { output_ids, meta, .. } = reply;
        let listed = &meta.output_token_logprobs;
        let told: Vec<u32> = match output_ids {
            _ if !listed.is_empty() => listed.iter().map(|logprob| logprob.id).collect(),
            Some(ids) => ids.clone(),
            None => Vec::new(),
        };
        let known = self.ids.len();
        let whole = match meta.completion_tokens {
            // Nothing new: told before, by the same event perhaps while it came.
            Some(count) if count == known && self.ids.ends_with(&told) => return Ok(()),
            Some(count) if told.len() == count => true,
            Some(count) if known + told.len() == count => false,
            Some(count) => {
                let told = told.len();
                return Err(Fault::broken(format!(
                    "the serve tells {told} tokens where {known} are known and it counts {count}: is it a version of sglang that \
                     is not known yet?"
                )));
            }
            None => told.len() >= known && told.starts_with(&self.ids),
        };
        let fresh = if whole { known } else { 0 };
        if whole && !told.starts_with(&self.ids) {
            return Err(Fault::broken("the serve takes back tokens that it told before".to_owned()));
        }
        self.ids.extend_from_slice(told.get(fresh..).unwrap_or_default());
        self.logprobs.extend(logprobs(meta, fresh));
        Ok(())
    }
}

fn logprobs(meta: &Meta, from: usize) -> Vec<TokenLogprobs> {
    let value = |logprob: &Logprob| {
        let value = logprob.logprob.map_or(TokenLogprobs::LOWEST_LOGPROB, |value| value as f32);
        if value.is_finite() { value.max(TokenLogprobs::LOWEST_LOGPROB) } else { TokenLogprobs::LOWEST_LOGPROB }
    };
    let chosen = meta.output_token_logprobs.iter().enumerate().skip(from);
    chosen
        .map(|(at, chosen)| TokenLogprobs {
            logprob: value(chosen),
            top: meta
                .output_top_logprobs
                .get(at)
                .map(|top| top.iter().map(|logprob| (logprob.id, value(logprob))).collect())
                .unwrap_or_default(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(ids: &[u32], listed: &[u32], count: Option<usize>) -> Reply {
        let logprob = |&id| Logprob { logprob: Some(-0.5), id, text: None };
        Reply {
            text: None,
            output_ids: (!ids.is_empty()).then(|| ids.to_vec()),
            meta: Meta {
                output_token_logprobs: listed.iter().map(logprob).collect(),
                completion_tokens: count,
                ..Meta::default()
            },
            error: None,
            rows: None,
        }
    }

    fn taken(replies: &[Reply]) -> Result<Vec<u32>, Fault> {
        let mut tokens = Tokens::default();
        replies.iter().try_for_each(|reply| tokens.take(reply))?;
        assert_eq!(
            tokens.logprobs.len(),
            if replies[0].meta.output_token_logprobs.is_empty() { 0 } else { tokens.ids.len() }
        );
        Ok(tokens.ids)
    }

    /// One call of three tokens, the last two of them equal, in the forms of all versions.
    #[test]
    fn ids_are_the_same_whether_events_tell_all_or_what_is_new() {
        let all = [
            // 0.4.9: no output_ids, logprobs of all.
            [reply(&[], &[5], Some(1)), reply(&[], &[5, 6], Some(2)), reply(&[], &[5, 6, 6], Some(3))],
            // 0.5.2: output_ids since the last event, logprobs of all.
            [reply(&[5], &[5], Some(1)), reply(&[6], &[5, 6], Some(2)), reply(&[6], &[5, 6, 6], Some(3))],
            // 0.5.15 with incremental output: both since the last event.
            [reply(&[5], &[5], Some(1)), reply(&[6], &[6], Some(2)), reply(&[6], &[6], Some(3))],
            // Without logprobs.
            [reply(&[5], &[], Some(1)), reply(&[5, 6], &[], Some(2)), reply(&[5, 6, 6], &[], Some(3))],
            // Events that were skipped, and one that tells nothing new.
            [reply(&[], &[5], Some(1)), reply(&[], &[5], Some(1)), reply(&[], &[5, 6, 6], Some(3))],
            // The last event twice, as it is seen while it comes and when it has come.
            [reply(&[5, 6], &[5, 6], Some(2)), reply(&[6], &[6], Some(3)), reply(&[6], &[6], Some(3))],
        ];
        for replies in all {
            assert_eq!(taken(&replies), Ok(vec![5, 6, 6]), "{replies:?}");
        }
        // Without a count, by what the lists begin with.
        assert_eq!(taken(&[reply(&[], &[5], None), reply(&[], &[5, 6], None)]), Ok(vec![5, 6]));
        assert_eq!(taken(&[reply(&[], &[5], None), reply(&[], &[6], None), reply(&[], &[7], None)]), Ok(vec![5, 6, 7]));
    }

    #[test]
    fn lists_that_do_not_fit_are_errors() {
        let error = |replies: &[Reply]| taken(replies).unwrap_err().error.to_string();
        assert!(error(&[reply(&[], &[5], Some(1)), reply(&[], &[5, 6], Some(5))]).contains("it counts 5"));
        assert!(error(&[reply(&[], &[5], Some(1)), reply(&[], &[9, 6], Some(2))]).contains("takes back tokens"));
    }
}
