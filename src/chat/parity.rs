//! The true Qwen tokenizers and templates against their reference programs: Python's Jinja and tiktoken.
//!
//! `scripts/fetch-test-assets` fetches them and stores what the references make of `tests/fixtures/conversations.json` and
//! of some two hundred texts. These tests run where the environment variable `ENGY_TEST_ASSETS` names its folder.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::detokenizer::Detokenizer;
use super::*;

/// `expected/templates.json`.
#[derive(Deserialize)]
struct Renders {
    conversations: Vec<Conversation>,
    /// An outcome for each conversation, by model.
    models: BTreeMap<String, Vec<Outcome>>,
}

#[derive(Deserialize, PartialEq, Debug)]
struct Conversation {
    name: String,
    messages: Vec<serde_json::Value>,
    tools: Option<serde_json::Value>,
    #[serde(default)]
    chat_template_kwargs: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// A prompt.
    Text(String),
    /// The template's own words of refusal.
    Raises(String),
    /// A fault in the template's Python, in words of Python's; ours are other ones.
    Fails(IgnoredAny),
}

/// `expected/ids.json` of one vocabulary.
#[derive(Deserialize)]
struct Encoded {
    added: BTreeMap<String, u32>,
    texts: Vec<EncodedText>,
}

#[derive(Deserialize)]
struct EncodedText {
    text: String,
    ids: Vec<u32>,
    /// What the ids stand for, without control tokens.
    decoded: String,
}

/// The folder of the assets; `None`, and a line that says so, where there is none.
fn assets() -> Option<PathBuf> {
    let folder = std::env::var_os("ENGY_TEST_ASSETS").filter(|folder| !folder.is_empty());
    if folder.is_none() {
        // Not `eprintln!`, which the test harness keeps to itself while tests pass.
        let line = "skipped, with nothing checked: set ENGY_TEST_ASSETS to what scripts/fetch-test-assets prints";
        writeln!(std::io::stderr(), "{line}").unwrap();
    }
    folder.map(PathBuf::from)
}

fn read<T: DeserializeOwned>(path: PathBuf) -> T {
    let bytes =
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}: run scripts/fetch-test-assets", path.display()));
    serde_json::from_slice(&bytes).unwrap()
}

/// What the references made of the conversations that this checkout has.
fn renders(assets: &Path) -> Renders {
    let renders: Renders = read(assets.join("expected/templates.json"));
    let here: Vec<Conversation> =
        read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/conversations.json").into());
    assert_eq!(renders.conversations, here, "the assets are of other conversations: run scripts/fetch-test-assets");
    renders
}

fn checkpoint(assets: &Path, model: &str) -> Checkpoint {
    let (folder, file) = (assets.join(model), assets.join(model).join("model.gguf"));
    Checkpoint::open(if file.exists() { &file } else { &folder }).unwrap()
}

impl Conversation {
    /// The messages as they stand: what a request's reading changes in them is no matter of the template.
    fn request(&self) -> ChatRequest {
        ChatRequest {
            messages: self.messages.clone(),
            tools: self.tools.clone(),
            template_kwargs: self.chat_template_kwargs.clone(),
            ..ChatRequest::default()
        }
    }
}

#[test]
fn templates_render_as_in_python() {
    let Some(assets) = assets() else { return };
    let renders = renders(&assets);
    let mut wrong = Vec::new();
    for (model, outcomes) in &renders.models {
        let template = ChatTemplate::new(&checkpoint(&assets, model).template().unwrap().unwrap()).unwrap();
        assert_eq!(outcomes.len(), renders.conversations.len());
        for (conversation, want) in renders.conversations.iter().zip(outcomes) {
            let got = template.render(&conversation.request()).map_err(|e| e.to_string());
            let right = match (want, &got) {
                (Outcome::Text(want), Ok(got)) => want == got,
                (Outcome::Raises(words), Err(got)) => {
                    *got == format!("the chat template refuses these messages: {words}")
                }
                (Outcome::Fails(_), Err(_)) => true,
                _ => false,
            };
            if !right {
                let (want, got) = (format!("{want:?}"), format!("{got:?}"));
                // The outcomes' own names differ; a text's first difference comes later, with a few letters before it.
                let texts = [want.strip_prefix("Text("), got.strip_prefix("Ok(")];
                let start = match texts {
                    [Some(want), Some(got)] => want.chars().zip(got.chars()).take_while(|(a, b)| a == b).count(),
                    _ => 0,
                };
                let part = |text: &str| text.chars().skip(start.saturating_sub(40)).take(120).collect::<String>();
                wrong.push(format!("{model}, {:?}:\n  want {}\n  got  {}", conversation.name, part(&want), part(&got)));
            }
        }
    }
    let first = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} differ, first of them\n{first}", wrong.len());
}

#[test]
fn ids_and_texts_are_tiktokens() {
    let Some(assets) = assets() else { return };
    let vocabularies: BTreeMap<String, Encoded> = read(assets.join("expected/ids.json"));
    for (model, expected) in &vocabularies {
        let tokenizer = Arc::new(Tokenizer::open(&checkpoint(&assets, model)).unwrap());
        for (token, id) in &expected.added {
            assert_eq!((tokenizer.id(token), tokenizer.encode(token).unwrap()), (Some(*id), vec![*id]), "{token}");
        }
        for EncodedText { text, ids, decoded } in &expected.texts {
            assert_eq!(tokenizer.encode(text).unwrap(), *ids, "{model}, {text:?}");
            assert_eq!(tokenizer.decode(ids), *decoded, "{model}, {text:?}");
            let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer));
            let pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
            assert_eq!(pieces.concat() + &detokenizer.finish(), *decoded, "{model}, {text:?}");
            let seen = ids.iter().filter(|id| !tokenizer.is_silent(**id));
            let bytes: Vec<u8> = seen.flat_map(|id| tokenizer.bytes(*id).unwrap()).collect();
            assert_eq!(String::from_utf8_lossy(&bytes), *decoded, "{model}, {text:?}");
        }
    }
}

#[test]
fn conversations_become_prompts_of_the_released_ids() {
    let Some(assets) = assets() else { return };
    let model_of = |name: &str| ChatModel::open(&checkpoint(&assets, name)).unwrap();
    let model = model_of("qwen3.6");
    let prompt = |request: serde_json::Value| model.prompt(&ChatRequest::parse(&request).unwrap(), 1000).unwrap();
    let hello = serde_json::json!({"messages": [{"role": "user", "content": "Hello"}]});
    // <|im_start|> user \n Hello <|im_end|> \n <|im_start|> assistant \n <think> \n
    let ids = [248045, 846, 198, 9419, 248046, 198, 248045, 74455, 198, 248068, 198];
    assert_eq!(prompt(hello.clone()).ids, ids);
    // Field case FC-C05.
    let mut off = hello.clone();
    off["chat_template_kwargs"] = serde_json::json!({"enable_thinking": false});
    let off = prompt(off);
    assert!(off.text.ends_with("<think>\n\n</think>\n\n"), "{}", off.text);
    assert!(off.ids.ends_with(&[248068, 271, 248069, 271]), "{:?}", off.ids);
    assert_eq!(checkpoint(&assets, "qwen3.6").end_ids(), [248044, 248046]);
    assert_eq!(checkpoint(&assets, "qwen3").end_ids(), [151643, 151645]);
    // Field case FC-K05.
    let names = ["<think>", "ok", "</think>", "<tool_call>", "x", "</tool_call>", "<|im_end|>"];
    let answer: Vec<u32> = names.iter().map(|token| model.tokenizer().id(token).unwrap()).collect();
    assert_eq!(model.tokenizer().decode(&answer), "<think>ok</think><tool_call>x</tool_call>");
    // The other vocabulary, with its template in a file and in the tokenizer's settings.
    for name in ["qwen3", "qwen3-embedded", "qwen3-instruct-2507"] {
        let prompt = model_of(name).prompt(&ChatRequest::parse(&hello).unwrap(), 1000).unwrap();
        assert_eq!(prompt.ids, [151644, 872, 198, 9707, 151645, 198, 151644, 77091, 198], "{name}");
    }
    // One inside a GGUF file: <|im_start|> and <|im_end|> are 1 and 2, and its template has a system text of its own.
    let ids = model_of("smollm2-135m-instruct").prompt(&ChatRequest::parse(&hello).unwrap(), 1000).unwrap().ids;
    assert_eq!(ids.into_iter().filter(|id| *id < 3).collect::<Vec<_>>(), [1, 2, 1, 2, 1]);
}
