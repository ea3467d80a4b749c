//! What is asked: conversations of a file, as the ids of their prompts.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::chat::{ChatModel, ChatRequest};

/// Conversations of agents: a system message, a question, results of tools.
const COMPILED_IN: &str = include_str!("prompts.jsonl");

/// Different random prompts where there is no text: as many as the largest load usually takes.
const RANDOM: usize = 16;

/// The prompts of a file, or those that are compiled in.
pub(super) fn read(path: Option<&Path>, chat: &ChatModel) -> anyhow::Result<Vec<Vec<u32>>> {
    let (name, text) = match path {
        None => ("the prompts that are compiled in".to_owned(), COMPILED_IN.to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|e| anyhow!("cannot read the prompts {name}: {e}"))?;
            (name, text)
        }
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompts: Vec<Vec<u32>> = lines
        .map(|(at, line)| prompt(line, chat).with_context(|| format!("line {} of {name}", at + 1)))
        .collect::<Result<_, _>>()
        .map_err(|error| anyhow!("{error:#}"))?;
    if prompts.is_empty() {
        bail!("{name} has no prompts: write a JSON object a line, such as {{\"prompt\":\"Name three rivers.\"}}");
    }
    Ok(prompts)
}

fn prompt(line: &str, chat: &ChatModel) -> anyhow::Result<Vec<u32>> {
    let asked: Value = serde_json::from_str(line).context("no JSON")?;
    let ids = match (asked.get("messages"), asked.get("prompt").and_then(Value::as_str)) {
        (Some(_), _) => chat.prompt(&ChatRequest::parse(&asked)?, usize::MAX)?.ids,
        (None, Some(text)) => chat.tokenizer().encode(text)?,
        (None, None) => bail!("neither messages nor a prompt in it"),
    };
    if ids.is_empty() {
        bail!("a prompt of no tokens");
    }
    Ok(ids)
}

/// Prompts of random ids.
pub(super) fn random(vocab: usize, tokens: usize) -> Vec<Vec<u32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let most = u32::try_from(vocab).unwrap_or(u32::MAX).max(1);
    (0..RANDOM).map(|_| (0..tokens).map(|_| rng.random_range(0..most)).collect()).collect()
}
