//! The tokenizer in a GGUF file's metadata, as the `tokenizer.json` that it was converted from.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::checkpoint::gguf::GgufFile;

/// Token types of GGUF files.
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// Llama 3's rule for cutting text into words.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A `tokenizer.json` value.
///
/// # Errors
/// A reason, when metadata is missing or of a kind that is not known here.
pub(super) fn tokenizer_json(file: &GgufFile) -> Result<Value, String> {
    let kind = file.str("tokenizer.ggml.model").ok_or("tokenizer.ggml.model is missing")?;
    let tokens = file.strings("tokenizer.ggml.tokens").ok_or("tokenizer.ggml.tokens is missing or no list of texts")?;
    let types: Vec<u64> = match file.array("tokenizer.ggml.token_type") {
        None => vec![NORMAL; tokens.len()],
        Some(types) => types.iter().map(|kind| kind.as_u64().unwrap_or(NORMAL)).collect(),
    };
    if types.len() != tokens.len() {
        return Err(format!("{} token types for {} tokens", types.len(), tokens.len()));
    }
    let vocab: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let added: Vec<Value> = tokens
        .iter()
        .zip(&types)
        .enumerate()
        .filter(|(_, (_, kind))| matches!(**kind, CONTROL | USER_DEFINED))
        .map(|(id, (token, &kind))| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": kind == CONTROL})
        })
        .collect();
    let form = match kind {
        "gpt2" => byte_level(file, &vocab)?,
        "llama" => sentence_piece(file, &tokens, &types, &vocab)?,
        other => {
            return Err(format!("the tokenizer model {other:?} is not known: gpt2 and llama are"));
        }
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "added_tokens": added,
        "normalizer": form.normalizer, "pre_tokenizer": form.pre_tokenizer, "decoder": form.decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": form.unknown, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": form.unknown.is_some(), "byte_fallback": form.byte_fallback,
                  "ignore_merges": form.ignore_merges, "vocab": vocab, "merges": form.merges},
    }))
}

/// What differs between kinds of tokenizer.
struct Form {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    merges: Vec<(String, String)>,
    unknown: Option<String>,
    byte_fallback: bool,
    ignore_merges: bool,
}

/// Byte-level pairs with an explicit list of merges, as GPT-2 has them.
fn byte_level(file: &GgufFile, vocab: &HashMap<&str, usize>) -> Result<Form, String> {
    let merges = file.strings("tokenizer.ggml.merges").ok_or("tokenizer.ggml.merges is missing or no list of texts")?;
    let merges = merges
        .into_iter()
        .map(|pair| match pair.split_once(' ') {
            // The tokenizer library takes for granted that both and their union are tokens.
            Some((left, right)) if [left, right, &format!("{left}{right}")].iter().all(|t| vocab.contains_key(t)) => {
                Ok((left.to_owned(), right.to_owned()))
            }
            Some(_) => Err(format!("the merge {pair:?} is of tokens that the vocabulary lacks")),
            None => Err(format!("the merge {pair:?} is no pair")),
        })
        .collect::<Result<_, _>>()?;
    let level = |use_regex| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let split = |regex| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let words = file.str("tokenizer.ggml.pre").unwrap_or("default");
    let pre_tokenizer = match words {
        "gpt-2" | "default" => level(true),
        "smollm" => json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true}, level(true)]}),
        "llama-bpe" => json!({"type": "Sequence", "pretokenizers": [split(LLAMA3_WORDS), level(false)]}),
        other => {
            return Err(format!(
                "its rule for words, {other:?}, is not known: gpt-2, smollm and llama-bpe are; use the model's folder release"
            ));
        }
    };
    Ok(Form {
        normalizer: Value::Null,
        pre_tokenizer,
        decoder: level(true),
        merges,
        unknown: None,
        byte_fallback: false,
        // Llama 3 takes a whole word that is in the vocabulary without looking for a way to merge it.
        ignore_merges: words == "llama-bpe",
    })
}

/// Pieces with scores, as Llama 2 has them: two neighbours merge where their union is a piece, the best score first.
fn sentence_piece(
    file: &GgufFile,
    tokens: &[&str],
    types: &[u64],
    vocab: &HashMap<&str, usize>,
) -> Result<Form, String> {
    let scores = file.array("tokenizer.ggml.scores").ok_or("tokenizer.ggml.scores is missing")?;
    if scores.len() != tokens.len() {
        return Err(format!("{} scores for {} tokens", scores.len(), tokens.len()));
    }
    let mut merges: Vec<(f64, usize, usize)> = Vec::new();
    let mut pieces = Vec::new();
    for ((token, kind), score) in tokens.iter().zip(types).zip(scores) {
        if *kind != NORMAL {
            continue;
        }
        let score = score.as_f64().ok_or("tokenizer.ggml.scores has something that is no number")?;
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&l), Some(&r)) = (vocab.get(left), vocab.get(right)) {
                merges.push((score, l, r));
                pieces.push((left, right));
            }
        }
    }
    let mut order: Vec<usize> = (0..merges.len()).collect();
    order.sort_by(|&a, &b| {
        let ((sa, la, ra), (sb, lb, rb)) = (merges[a], merges[b]);
        sb.total_cmp(&sa).then((la, ra).cmp(&(lb, rb)))
    });
    let prefix = file.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let normalizers = if prefix { vec![prepend, replace] } else { vec![replace] };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = file.u64("tokenizer.ggml.unknown_token_id").unwrap_or(0);
    let unknown = usize::try_from(unknown).ok().and_then(|id| tokens.get(id)).map(|token| (*token).to_owned());
    Ok(Form {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        merges: order.into_iter().map(|at| (pieces[at].0.to_owned(), pieces[at].1.to_owned())).collect(),
        unknown,
        byte_fallback: true,
        ignore_merges: false,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checkpoint::gguf::GgufValue;
    use crate::checkpoint::gguf::testing::metadata_only;

    fn texts(texts: &[&str]) -> GgufValue {
        GgufValue::Array(texts.iter().map(|t| GgufValue::String((*t).into())).collect())
    }

    fn text(text: &str) -> GgufValue {
        GgufValue::String(text.into())
    }

    fn json(values: &[(&str, GgufValue)]) -> Result<Value, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.gguf");
        std::fs::write(&path, metadata_only(values)).unwrap();
        tokenizer_json(&GgufFile::open(&path).unwrap())
    }

    /// Pieces as Llama 2 has them: bytes, letters and a few words with scores that decide the merges.
    pub(in crate::chat::tokenizer) fn sentence_piece_json() -> Value {
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
        tokens.extend((0..=255).map(|b| format!("<0x{b:02X}>")));
        let words = ["▁", "o", "k", "h", "e", "l", "ok", "▁o", "▁ok", "he", "ll", "hell", "lo", "hi"];
        tokens.extend(words.map(str::to_owned));
        // Control, byte and normal tokens; words are scored by their place, the first ones best.
        let types = [2, 3, 3].into_iter().chain([6; 256]).chain([1; 14]);
        let scores = [0.0; 259].into_iter().chain((0..14).map(|n| -f64::from(n)));
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        json(&[
            ("tokenizer.ggml.model", text("llama")),
            ("tokenizer.ggml.tokens", texts(&tokens)),
            ("tokenizer.ggml.token_type", GgufValue::Array(types.map(GgufValue::Unsigned).collect())),
            ("tokenizer.ggml.scores", GgufValue::Array(scores.map(GgufValue::Float).collect())),
        ])
        .unwrap()
    }

    fn pieces(json: &Value, text: &str) -> Vec<String> {
        let tokenizer = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        tokenizer.encode(text, false).unwrap().get_tokens().to_vec()
    }

    #[test]
    fn scores_decide_which_pieces_merge() {
        let json = sentence_piece_json();
        // `ok` merges before `▁o` and leaves `▁ok`; `he` and `ll` merge to `hell` before `lo` gets its chance.
        assert_eq!(pieces(&json, "ok"), ["▁ok"]);
        assert_eq!(pieces(&json, "hello"), ["▁", "hell", "o"]);
        // What no piece has falls back to bytes; a control token in the text is one.
        assert_eq!(pieces(&json, "é</s>"), ["▁", "<0xC3>", "<0xA9>", "</s>"]);
    }

    #[test]
    fn words_are_cut_as_the_file_says() {
        let tokens: Vec<String> =
            "12345 ab".chars().map(|c| if c == ' ' { "Ġ".into() } else { c.to_string() }).collect();
        let mut tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        tokens.extend(["12", "123", "34", "345", "45", "<|end|>"]);
        let types = [1; 13].into_iter().chain([3]).map(GgufValue::Unsigned).collect();
        let file = |pre: &str, merges: &[&str]| {
            json(&[
                ("tokenizer.ggml.model", text("gpt2")),
                ("tokenizer.ggml.pre", text(pre)),
                ("tokenizer.ggml.tokens", texts(&tokens)),
                ("tokenizer.ggml.token_type", GgufValue::Array(Vec::clone(&types))),
                ("tokenizer.ggml.merges", texts(merges)),
            ])
        };
        let merges = ["1 2", "12 3", "3 4", "34 5", "4 5"];
        assert_eq!(pieces(&file("smollm", &merges).unwrap(), "12345<|end|>"), ["1", "2", "3", "4", "5", "<|end|>"]);
        assert_eq!(pieces(&file("llama-bpe", &merges).unwrap(), "12345"), ["123", "45"]);
        assert_eq!(pieces(&file("gpt-2", &merges).unwrap(), "12345 ab"), ["123", "45", "Ġ", "a", "b"]);
        assert!(file("dreams", &merges).unwrap_err().contains("dreams"));
        assert!(file("gpt-2", &["1 9"]).unwrap_err().contains("vocabulary lacks"));
        assert!(file("gpt-2", &["a b"]).unwrap_err().contains("vocabulary lacks"), "the union must be a token too");
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(json(&[("a", text("b"))]).unwrap_err().contains("tokenizer.ggml.model"));
        let odd = json(&[("tokenizer.ggml.model", text("t5")), ("tokenizer.ggml.tokens", texts(&["a"]))]);
        assert!(odd.unwrap_err().contains("t5"));
    }
}
