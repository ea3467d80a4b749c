//! Prompt and answer speed of candle's own loop over `quantized_llama`, one request.
//!
//! Usage: `candle-loop MODEL.gguf PROMPT ANSWER`. Prints `prefill_tok_s decode_tok_s peak_rss_bytes`: prompt tokens over the
//! time until the first answer token is chosen, and the other answer tokens over the time after, greedy, as
//! `engy-miner bench engine` counts them.

use std::error::Error;
use std::fs::{self, File};
use std::time::{Duration, Instant};

use candle_core::quantized::gguf_file;
use candle_core::{D, Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().ok_or("usage: candle-loop MODEL.gguf PROMPT ANSWER");
    let (path, prompt, answer) = (next()?, next()?.parse::<u32>()?, next()?.parse::<u32>()?);
    let mut file = File::open(path)?;
    let content = gguf_file::Content::read(&mut file)?;
    let vocab =
        content.tensor_infos.get("token_embd.weight").ok_or("the model has no embeddings")?.shape.dims()[0] as u32;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    // The first round is short and only wakes threads and caches. A prompt at position 0 starts the keys and values anew.
    run(&mut model, vocab, 8, 4)?;
    let (prefill, decode) = run(&mut model, vocab, prompt, answer)?;
    let prefill = f64::from(prompt) / prefill.as_secs_f64();
    let decode = f64::from(answer - 1) / decode.as_secs_f64();
    println!("{prefill:.2} {decode:.2} {}", peak_rss().unwrap_or_default());
    Ok(())
}

fn run(model: &mut ModelWeights, vocab: u32, prompt: u32, answer: u32) -> Result<(Duration, Duration), Box<dyn Error>> {
    let tokens: Vec<u32> = (0..prompt).map(|i| 100 + i * 104_729 % (vocab - 200)).collect();
    let started = Instant::now();
    let mut token = step(model, &tokens, 0)?;
    let prefilled = Instant::now();
    for done in 1..answer {
        token = step(model, &[token], (prompt + done - 1) as usize)?;
    }
    Ok((prefilled - started, prefilled.elapsed()))
}

/// Feeds tokens from a position on; the likeliest next one.
fn step(model: &mut ModelWeights, tokens: &[u32], position: usize) -> candle_core::Result<u32> {
    let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    model.forward(&input, position)?.argmax(D::Minus1)?.squeeze(0)?.to_scalar()
}

/// The most memory that this process ever held.
fn peak_rss() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
