//! What a serve is like, found out before the first request: by asking it, and by real calls.

use std::cmp::Ordering;
use std::time::Duration;

use half::bf16;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fault::{Fault, causes, quote};
use super::pool::Traits;
use super::reply::{FinishReason, Reply, ReplyReader, RowsFound, StreamEvent, StreamReader};
use super::request::{GenerateBody, Shape, rid};
use super::serve::{Answer, Serve, is_stream};
use crate::backend::{BackendError, GenerationRequest};

/// New tokens of the probe's calls: enough to count rows.
const TOKENS: usize = 4;
/// A cold serve compiles kernels on its first call.
const CALL_TIMEOUT: Duration = Duration::from_secs(1200);
/// The probe's questions, behind those calls: before its first generation a cold serve leaves them open for a minute and more.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of JSON a value of a row takes: what the shortest decimal numbers of bf16 values come to.
const BYTES_A_VALUE: f64 = 9.36;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Note,
    /// It works, at a cost or a risk.
    Warning,
    /// No answer of this serve could be proven, or trusted.
    Fault,
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at.
    pub topic: &'static str,
    /// What is the case.
    pub what: String,
    /// What to do about it, most often a flag of the serve; empty where there is nothing to do.
    pub advice: String,
}

/// What a serve is compared with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Expected {
    /// Values of a row, by the checkpoint.
    pub hidden: usize,
    /// Longest sequence that the model spec promises, tokens.
    pub context: usize,
    /// The checkpoint's folder name.
    pub checkpoint: String,
    /// Requests that will be sent at once.
    pub at_once: usize,
    /// Ids of a short question, at least two.
    pub prompt: Vec<u32>,
    /// It shall recompute given texts, not answer: the prompt's rows are what is wanted of it, and nothing is streamed.
    pub recomputes: bool,
}

/// A serve's probe.
#[derive(Debug, Clone, Default)]
pub(super) struct Probed {
    pub(super) findings: Vec<Finding>,
    pub(super) traits: Traits,
    pub(super) kv_limit: Option<usize>,
    /// Longest sequence, as the serve says.
    pub(super) context: Option<usize>,
    /// It did not answer at all.
    pub(super) unreachable: bool,
    /// Requests that it runs at once, as it says.
    pub(super) max_running: Option<usize>,
}

impl Probed {
    fn add(&mut self, severity: Severity, topic: &'static str, what: impl Into<String>, advice: impl Into<String>) {
        // Serves put words into it.
        self.findings.push(Finding { severity, topic, what: quote(&what.into()), advice: advice.into() });
    }

    /// The worst finding.
    pub(super) fn fault(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.severity == Severity::Fault)
    }
}

/// Probes a serve.
pub(super) async fn probe(serve: &Serve, expected: &Expected) -> Probed {
    let mut probed = Probed::default();
    match serve.ask("health", ASK_TIMEOUT).await {
        Answer::Unreachable(why) => {
            probed.unreachable = true;
            probed.add(
                Severity::Fault,
                "address",
                format!("it cannot be reached: {why}"),
                "start the serve, or correct --serve-url",
            );
            return probed;
        }
        Answer::Status(status) if status.as_u16() == 401 => {
            probed.add(Severity::Fault, "key", "it wants a key", "give --serve-api-key the serve's --api-key");
            return probed;
        }
        _ => {}
    }
    plain_call(serve, expected, &mut probed).await;
    if probed.fault().is_some() {
        return probed;
    }
    if !expected.recomputes {
        streamed_call(serve, expected, &mut probed).await;
    }
    let info = serve.server_info(ASK_TIMEOUT).await;
    let model = serve.ask_either(&["get_model_info", "model_info"], ASK_TIMEOUT).await;
    judge_info(info.as_ref(), model.ok().as_ref(), expected, &mut probed);
    probed
}

/// One call as the miner makes them: rows, tokens and what else comes back.
async fn plain_call(serve: &Serve, expected: &Expected, probed: &mut Probed) {
    let request = GenerationRequest::greedy(expected.prompt.clone(), TOKENS);
    let (mut bytes, mut rows) = (0, 0);
    let outcome = tokio::time::timeout(CALL_TIMEOUT, async {
        let mut response = call(serve, &request).await?;
        let mut reader = ReplyReader::new(expected.hidden);
        while let Some(chunk) = chunk(&mut response).await? {
            bytes += chunk.len();
            reader.push(&chunk, &mut |_: &[bf16]| rows += 1)?;
            if rows > 2 * TOKENS {
                return Err(Fault::broken(format!("it gives rows of hidden states without end for {TOKENS} tokens")));
            }
        }
        Ok::<_, Fault>(reader.finish()?)
    });
    let reply = match outcome.await {
        Ok(Ok(reply)) => reply,
        Ok(Err(fault)) => return refused(&fault, probed),
        Err(_) => {
            let what = format!("no answer to {TOKENS} tokens within {} s", CALL_TIMEOUT.as_secs());
            return probed.add(Severity::Fault, "call", what, "look at the serve's log");
        }
    };
    judge_reply(&reply, bytes, expected, probed);
}

async fn call(serve: &Serve, request: &GenerationRequest) -> Result<reqwest::Response, Fault> {
    let rid = rid();
    // An event a token, however the serve was started.
    let shape = Shape { max_new_tokens: TOKENS, stream_interval: request.streamed.then_some(1), knows_seed: false };
    serve.generate(&GenerateBody::new(&rid, &request.prompt, request, shape)).await
}

async fn chunk(response: &mut reqwest::Response) -> Result<Option<bytes::Bytes>, Fault> {
    response.chunk().await.map_err(|error| Fault::broken(format!("its answer broke off: {}", causes(&error))))
}

fn refused(fault: &Fault, probed: &mut Probed) {
    let (what, advice) = match &fault.error {
        BackendError::Client(what) => (what.clone(), "is it a serve of this model?"),
        BackendError::Busy(what) => (format!("it is busy: {what}"), "wait until it is idle"),
        BackendError::Unavailable(what) | BackendError::Broken(what) => (what.clone(), ""),
    };
    probed.add(Severity::Fault, "call", what, advice);
}

fn judge_reply(reply: &Reply, bytes: usize, expected: &Expected, probed: &mut Probed) {
    if let Some(error) = &reply.error {
        return refused(&Fault::in_reply(error, false), probed);
    }
    if let Some(FinishReason::Abort { message, .. }) = &reply.meta.finish_reason {
        let what = format!("it gave up a call: {}", message.as_deref().unwrap_or("no reason given"));
        return probed.add(Severity::Fault, "call", what, "look at the serve's log");
    }
    let tokens = match (&reply.output_ids, reply.meta.output_token_logprobs.len()) {
        (_, listed @ 1..) => listed,
        (Some(ids), _) => ids.len(),
        (None, _) => 0,
    };
    let RowsFound { rows, prompt_rows, first_row_missing } = reply.rows.unwrap_or_default();
    if rows == 0 {
        let what = format!("{tokens} tokens came without hidden states");
        let advice = "start it with --enable-return-hidden-states; from 0.5.23 on --return-hidden-states-mode full";
        return probed.add(Severity::Fault, "hidden states", what, advice);
    }
    if rows + usize::from(first_row_missing) != tokens {
        let what = format!("{tokens} tokens came with {rows} rows");
        let advice = "start it without --speculative-algorithm, and with --chunked-prefill-size -1";
        return probed.add(Severity::Fault, "hidden states", what, advice);
    }
    let hidden = expected.hidden;
    probed.add(Severity::Note, "hidden states", format!("{rows} rows of {hidden} values for {tokens} tokens"), "");
    if first_row_missing {
        probed.add(
            Severity::Warning,
            "first row",
            "the row of an answer's first token is missing",
            "start it with --disable-radix-cache; until then first tokens are counted as prompt",
        );
    }
    probed.traits.returns_prompt = prompt_rows > 0;
    if expected.recomputes {
        if prompt_rows == 0 {
            let what = "it returns no rows of the prompt, and a recompute is made of them";
            let advice =
                "start it without what trims its replies, and with --disable-radix-cache --chunked-prefill-size -1";
            return probed.add(Severity::Fault, "prompt rows", what, advice);
        }
        probed.add(Severity::Note, "prompt rows", "it returns a row for each prompt token", "");
    } else if prompt_rows > 0 {
        let measured = bytes as f64 / (rows + prompt_rows) as f64;
        let a_row = measured.max(hidden as f64 * BYTES_A_VALUE / 2.0) / 1e3;
        probed.add(
            Severity::Warning,
            "prompt rows",
            format!("it returns a row for each prompt token: {a_row:.0} kB each, {:.0} MB for 10,000", a_row * 10.0),
            "they are dropped here at once, but the serve holds them as text: trim its replies (docs/sglang.md), or keep \
             prompts short",
        );
    }
    match reply.meta.prompt_tokens {
        Some(counted) if counted == expected.prompt.len() => probed.traits.counts_prompts = true,
        // Too short to have been cut.
        counted => {
            let counted = counted.map_or_else(|| "no".to_owned(), |counted| counted.to_string());
            let what = format!("it counts {counted} tokens of a prompt of {}", expected.prompt.len());
            let advice =
                "whether it cuts long prompts cannot be seen: make sure that it runs without --allow-auto-truncate";
            probed.add(Severity::Warning, "prompt", what, advice);
        }
    }
}

/// A streamed call: whether its events repeat the rows.
async fn streamed_call(serve: &Serve, expected: &Expected, probed: &mut Probed) {
    let greedy = GenerationRequest::greedy(expected.prompt.clone(), TOKENS);
    let request = GenerationRequest { streamed: true, ..greedy };
    let outcome = tokio::time::timeout(CALL_TIMEOUT, async {
        let mut response = call(serve, &request).await?;
        if !is_stream(&response) {
            return Err(Fault::broken("it answers a streamed call with no stream"));
        }
        let mut reader = StreamReader::new(expected.hidden);
        let (mut replies, mut with_rows) = (0, 0);
        while let Some(chunk) = chunk(&mut response).await? {
            let mut bytes = &chunk[..];
            while let Some(event) = reader.next(&mut bytes, &mut |_: &[bf16]| {})? {
                let StreamEvent::Reply(reply) = event else { continue };
                if let Some(error) = &reply.error {
                    return Err(Fault::in_reply(error, replies > 0));
                }
                replies += 1;
                with_rows += usize::from(reply.rows.is_some_and(|found| found.rows + found.prompt_rows > 0));
            }
        }
        Ok::<_, Fault>((replies, with_rows))
    });
    match outcome.await {
        Ok(Ok((_, 0))) => probed.add(
            Severity::Fault,
            "streams",
            "a streamed answer came without hidden states",
            "start it without what takes them out of its streams",
        ),
        Ok(Ok((2.., 1))) => probed.add(Severity::Note, "streams", "rows come once, at the end", ""),
        Ok(Ok((replies, _))) => {
            probed.traits.repeats_rows = true;
            if replies == 1 {
                let what = "a streamed answer came in one event: its rows are taken to be repeated in each of several";
                return probed.add(Severity::Note, "streams", what, "");
            }
            probed.add(
                Severity::Warning,
                "streams",
                "every event of a stream repeats all rows",
                "streamed answers are asked for in eight pieces a call; trim the serve's replies (docs/sglang.md) for smooth ones",
            );
        }
        Ok(Err(fault)) => refused(&fault, probed),
        Err(_) => probed.add(Severity::Fault, "streams", "a streamed call had no end", "look at the serve's log"),
    }
}

fn judge_info(info: Option<&Value>, model: Option<&Value>, expected: &Expected, probed: &mut Probed) {
    let Some(info) = info else {
        return probed.add(
            Severity::Warning,
            "server info",
            "it does not tell its flags",
            "check by hand that it decodes without --speculative-algorithm",
        );
    };
    let text = |key: &str| info.get(key).and_then(Value::as_str);
    let number = |key: &str| info.get(key).and_then(Value::as_i64);
    let is_on = |key: &str| info.get(key).and_then(Value::as_bool) == Some(true);
    let version = text("version").and_then(Version::parse);
    match version {
        Some(version) => {
            probed.traits.knows_seed = version >= Version::SEEDS;
            probed.add(Severity::Note, "version", version.to_string(), "");
        }
        None => probed.add(Severity::Note, "version", "it does not tell its version", ""),
    }
    if let Some(algorithm) = text("speculative_algorithm") {
        probed.add(
            Severity::Fault,
            "speculative decoding",
            format!("it decodes speculatively ({algorithm}), which loses rows without a word"),
            "start it without --speculative-algorithm",
        );
    }
    if text("return_hidden_states_mode") == Some("last") {
        probed.add(
            Severity::Fault,
            "hidden states",
            "it returns the last row alone",
            "--return-hidden-states-mode full",
        );
    }
    // Up to there, rows of a batch's prompts are cut as if no prefix had been known.
    let cuts_wrong = version.is_none_or(|version| version < Version::TRUE_LENGTHS);
    if cuts_wrong && info.get("disable_radix_cache").is_some() && !is_on("disable_radix_cache") {
        probed.add(
            Severity::Warning,
            "prefix cache",
            "in this version a known prefix can give a prompt another request's row",
            "--disable-radix-cache",
        );
    }
    // The prompt's first rows up to 0.5.15, the answer's last ones since: no version keeps all.
    if let Some(size) = number("chunked_prefill_size").filter(|size| *size > 0) {
        probed.add(
            Severity::Warning,
            "divided prompts",
            format!("a prompt that is read in pieces, of more than {size} tokens or beside others, can lose rows: such an answer fails"),
            "--chunked-prefill-size -1",
        );
    }
    if is_on("allow_auto_truncate") {
        probed.add(
            Severity::Warning,
            "truncation",
            "it shortens long prompts without a word: such an answer fails",
            "start it without --allow-auto-truncate",
        );
    }
    probed.context =
        number("context_length").or_else(|| number("max_req_input_len")).and_then(|n| usize::try_from(n).ok());
    if let Some(context) = probed.context.filter(|context| *context < expected.context) {
        probed.add(
            Severity::Warning,
            "context",
            format!("{context} tokens, where the model spec promises {}", expected.context),
            format!("--context-length {}", expected.context),
        );
    }
    probed.max_running = number("max_running_requests").and_then(|n| usize::try_from(n).ok());
    // The serve's own health check and a leg that drains want a place too.
    if let Some(running) = probed.max_running.filter(|running| *running < expected.at_once + 2) {
        probed.add(
            Severity::Warning,
            "places",
            format!("{running} requests run at once, and {} may be sent", expected.at_once),
            format!("--max-running-requests {}, or a smaller --max-inflight", expected.at_once + 2),
        );
    }
    probed.kv_limit = kv_limit(info);
    let path = text("model_path").or_else(|| model.and_then(|model| model.get("model_path")?.as_str()));
    let served = path.map(|path| path.trim_end_matches('/').rsplit('/').next().unwrap_or(path));
    if let Some(served) = served.filter(|served| *served != expected.checkpoint) {
        probed.add(
            Severity::Note,
            "model",
            format!("it serves {served:?}, the checkpoint here is {:?}", expected.checkpoint),
            "make sure that they are the same",
        );
    }
}

/// Tokens that a serve's cache holds over all its ranks, from its own account.
pub(super) fn kv_limit(info: &Value) -> Option<usize> {
    let tokens = info.get("max_total_num_tokens")?.as_u64()?;
    let ranks = info.get("dcp_size").and_then(Value::as_u64).unwrap_or(1).max(1);
    usize::try_from(tokens.saturating_mul(ranks)).ok()
}

/// A version of sglang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version([u32; 3]);

impl Version {
    /// From here on sampling parameters have a seed.
    const SEEDS: Self = Self([0, 5, 6]);
    /// From here on rows are cut by what was really computed of a prompt.
    const TRUE_LENGTHS: Self = Self([0, 5, 23]);

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty()).map(str::parse);
        let mut part = || parts.next()?.ok();
        Some(Self([part()?, part()?, part().unwrap_or(0)]))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.0.partial_cmp(&other.0)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "sglang {major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected {
            hidden: 576,
            context: 4096,
            checkpoint: "Other".into(),
            at_once: 24,
            prompt: vec![1, 2],
            recomputes: false,
        }
    }

    fn topics(probed: &Probed, severity: Severity) -> Vec<&'static str> {
        probed.findings.iter().filter(|finding| finding.severity == severity).map(|finding| finding.topic).collect()
    }

    /// The recorded account of a real 0.5.6 serve, as it is and with flags that matter.
    #[test]
    fn flags_are_read_off_a_real_serves_account() {
        let recorded = include_str!("../../../tests/fixtures/sglang/get_server_info.body");
        let info: Value = serde_json::from_str(recorded).unwrap();
        let judge = |change: fn(&mut Value)| {
            let mut info = info.clone();
            change(&mut info);
            let mut probed = Probed::default();
            judge_info(Some(&info), None, &expected(), &mut probed);
            probed
        };
        let probed = judge(|_| ());
        assert_eq!(topics(&probed, Severity::Warning), ["context", "places"]);
        assert_eq!(topics(&probed, Severity::Note), ["version", "model"]);
        assert_eq!((probed.kv_limit, probed.context, probed.max_running), (Some(4096), Some(2048), Some(4)));
        assert!(probed.traits.knows_seed);
        let speculative = judge(|info| info["speculative_algorithm"] = "EAGLE".into());
        assert!(speculative.fault().unwrap().what.contains("EAGLE"));
        assert_eq!(
            topics(&judge(|info| info["return_hidden_states_mode"] = "last".into()), Severity::Fault),
            ["hidden states"]
        );
        let cached = |info: &mut Value| {
            info["disable_radix_cache"] = false.into();
            info["chunked_prefill_size"] = 8192.into();
            info["allow_auto_truncate"] = true.into();
        };
        let warned = topics(&judge(cached), Severity::Warning);
        assert_eq!(warned, ["prefix cache", "divided prompts", "truncation", "context", "places"]);
        let newer = judge(|info| {
            info["disable_radix_cache"] = false.into();
            info["version"] = "0.5.23.post1".into();
        });
        assert_eq!(topics(&newer, Severity::Warning), ["context", "places"]);
        let divided = judge(|info| {
            info["chunked_prefill_size"] = 8192.into();
            info["version"] = "0.5.23".into();
        });
        assert_eq!(topics(&divided, Severity::Warning), ["divided prompts", "context", "places"]);
        let evil = judge(|info| info["speculative_algorithm"] = "\u{1b}[31mE\nV".into());
        assert!(evil.findings.iter().all(|finding| !finding.what.contains(char::is_control)), "{evil:?}");
        assert!(newer.traits.knows_seed);
    }

    #[test]
    fn versions_compare_by_number() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("0.5.2") < Version::SEEDS && version("0.5.10") >= Version::SEEDS);
        assert!(version("0.4.9.post6") < version("0.5.2") && version("0.5") < version("0.5.1"));
        assert_eq!(Version::parse("main"), None);
    }
}
