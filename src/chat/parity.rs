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

/// The field cases of templates and a model that they are about.
fn field_case(id: &str) -> serde_json::Value {
    let text = include_str!("../../tests/fixtures/field_cases.jsonl");
    let mut cases = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    cases.find(|case| case["id"] == id).unwrap()
}

/// The prompt's text of a request like a case's input.
fn prompt_text(model: &ChatModel, input: &serde_json::Value) -> String {
    let before = input.clone();
    let text = model.prompt(&ChatRequest::parse(input).unwrap(), 10_000).unwrap().text;
    assert_eq!(*input, before);
    text
}

#[test]
fn fc_c01_arguments_as_text_render_as_objects_do() {
    let Some(assets) = assets() else { return };
    let case = field_case("FC-C01");
    for name in ["qwen3.6", "qwen3.5-think", "qwen3.8"] {
        let model = ChatModel::open(&checkpoint(&assets, name)).unwrap();
        let text = prompt_text(&model, &case["input"]);
        let mut objects = case["input"].clone();
        let calls = &mut objects["messages"][1]["tool_calls"];
        calls[0]["function"]["arguments"] = serde_json::json!({"minutes": 5, "label": "tea"});
        calls[1]["function"]["arguments"] = serde_json::json!({});
        assert_eq!(text, prompt_text(&model, &objects), "{name}");
        let turn = text.split("<|im_start|>assistant\n").nth(1).unwrap().split("<|im_end|>").next().unwrap();
        let words = |key: &str| case["expect"][key].as_array().unwrap().clone();
        for word in words("assistant_turn_must_not_contain") {
            assert!(!turn.contains(word.as_str().unwrap()), "{name}: {turn}");
        }
        for word in words("must_contain") {
            assert!(turn.contains(word.as_str().unwrap()), "{name}: {turn}");
        }
    }
}

#[test]
fn fc_c03_a_late_system_message_stays_in_its_place() {
    let Some(assets) = assets() else { return };
    let case = field_case("FC-C03");
    for name in ["qwen3.6", "qwen3.5-think", "qwen3.8"] {
        let model = ChatModel::open(&checkpoint(&assets, name)).unwrap();
        let text = prompt_text(&model, &case["input"]);
        let mut rest = text.as_str();
        for part in case["expect"]["order"].as_array().unwrap() {
            rest = rest.split_once(part.as_str().unwrap()).unwrap_or_else(|| panic!("{name}: {part} in {text}")).1;
        }
        assert_eq!(text.matches("<|im_start|>system").count(), 1, "{name}");
        let mut first_two = case["input"].clone();
        first_two["messages"].as_array_mut().unwrap().truncate(2);
        let start = prompt_text(&model, &first_two);
        let start = start.strip_suffix("<|im_start|>assistant\n<think>\n").unwrap();
        assert!(text.starts_with(start), "{name}: {text}");
    }
}

#[test]
fn fc_c05_without_thinking_the_answer_is_content() {
    let Some(assets) = assets() else { return };
    let case = field_case("FC-C05");
    let model = ChatModel::open(&checkpoint(&assets, "qwen3.6")).unwrap();
    let model = model.with_parsers(Some(ReasoningParser::Qwen3), Some(ToolCallParser::Qwen3Coder));
    let request = ChatRequest::parse(&case["input"]).unwrap();
    let prompt = model.prompt(&request, 1000).unwrap();
    assert!(prompt.text.ends_with(case["expect"]["ends_with"].as_str().unwrap()));
    assert_eq!(prompt.in_thought, case["expect"]["think_open"].as_bool().unwrap());
    let mut answer = model.answer(&request, prompt.in_thought);
    model.tokenizer().encode("4").unwrap().into_iter().for_each(|id| drop(answer.push(id)));
    assert_eq!(answer.finish(AnswerEnd::Stop).1.content.as_deref(), Some("4"));
}

#[test]
fn templates_say_what_they_cannot_take() {
    let Some(assets) = assets() else { return };
    let several = serde_json::json!([{"role": "developer", "content": "first"}, {"role": "system", "content": "second"},
        {"role": "user", "content": "question"}, {"role": "system", "content": "late"}, {"role": "user", "content": "go"}]);
    for name in ["qwen3.6", "qwen3.5-think", "qwen3.8", "qwen3", "smollm2-135m-instruct"] {
        let model = ChatModel::open(&checkpoint(&assets, name)).unwrap();
        for effort in ["minimal", "low", "medium", "high", "xhigh", "max"] {
            let request = serde_json::json!({"messages": several, "reasoning_effort": effort});
            let text = prompt_text(&model, &request);
            assert!(["first", "second", "question", "late"].iter().all(|part| text.contains(part)), "{name}: {text}");
        }
        // What no one can mend is the buyer's fault, in the template's words.
        let request = serde_json::json!({"messages": [{"role": "system", "content": "x"}]});
        if name.starts_with("qwen3.") {
            let error = model.prompt(&ChatRequest::parse(&request).unwrap(), 1000).unwrap_err().to_string();
            assert!(error.ends_with("No user query found in messages."), "{name}: {error}");
        }
    }
}

#[test]
fn a_long_conversation_stays_far_within_the_templates_fuel() {
    let Some(assets) = assets() else { return };
    let model = ChatModel::open(&checkpoint(&assets, "qwen3.6")).unwrap();
    let turn = |at: usize| serde_json::json!({"role": if at.is_multiple_of(2) { "user" } else { "assistant" }, "content": "x"});
    let messages = (0..20_001).map(turn).collect();
    let request = ChatRequest { messages, ..ChatRequest::default() };
    assert!(model.prompt(&request, usize::MAX).is_ok());
}

#[test]
fn an_answer_of_the_true_tokenizer_is_read_by_its_tokens() {
    let Some(assets) = assets() else { return };
    for (name, form, call) in [
        ("qwen3.6", ToolCallParser::Qwen3Coder, "<function=f>\n<parameter=n>\n5\n</parameter>\n</function>"),
        ("qwen3", ToolCallParser::Hermes, "{\"name\": \"f\", \"arguments\": {\"n\": 5}}"),
    ] {
        let model = ChatModel::open(&checkpoint(&assets, name)).unwrap();
        let model = model.with_parsers(Some(ReasoningParser::Qwen3), Some(form));
        let tools = serde_json::json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
            "properties": {"n": {"type": "integer"}}}}}]);
        let request = ChatRequest { tools: Some(tools), ..ChatRequest::default() };
        let mut answer = model.answer(&request, true);
        let text = format!("Hm, 世界.\n</think>\n\nOk 😀.\n\n<tool_call>\n{call}\n</tool_call>");
        model.tokenizer().encode(&text).unwrap().into_iter().for_each(|id| drop(answer.push(id)));
        let (_, message, reason) = answer.finish(AnswerEnd::Stop);
        assert_eq!(message.reasoning_content.as_deref(), Some("Hm, 世界."), "{name}");
        assert_eq!(message.content.as_deref(), Some("Ok 😀."), "{name}");
        assert_eq!(message.tool_calls.unwrap()[0].function.arguments, "{\"n\": 5}", "{name}");
        assert_eq!(reason, crate::openai::FinishReason::ToolCalls);
    }
}
