//! Agents: a model that thinks, calls two tools one after the other, and answers.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use engy_miner::backend::Backend;
use engy_miner::chat::ChatModel;
use engy_miner::checkpoint::Checkpoint;
use engy_miner::fake_serve::{Dialect, Engine, FakeServe, FakeServeConfig, PromptBlock};
use engy_miner::job::{Limits, Service};
use engy_miner::spec::{ReasoningParser, ToolCallParser};
use serde_json::{Value, json};

use crate::scripted_model::{HIDDEN, ScriptedModel};
use crate::site::{end, events, fixture, serve};

/// Answers as Qwen3.6 does, by the tool results in the prompt, which starts the thought.
fn qwen3_6(prompt: &str) -> String {
    let results: Vec<&str> = prompt
        .split("<tool_response>\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("\n</tool_response>"))
        .map(|(result, _)| result)
        .collect();
    match results[..] {
        [] => "I need the weather first.\n</think>\n\nLet me look.\n\n<tool_call>\n<function=get_weather>\n\
               <parameter=city>\nOslo\n</parameter>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>"
            .into(),
        [weather] => {
            // The call before must stand in the prompt as the model wrote it.
            assert!(
                prompt.contains("<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n1\n</parameter>"),
                "{prompt}"
            );
            let weather: Value = serde_json::from_str(weather).unwrap();
            let celsius = &weather["celsius"];
            format!(
                "It is {celsius} degrees.\n<tool_call>\n<function=to_fahrenheit>\n<parameter=celsius>\n{celsius}\n\
                 </parameter>\n</function>\n</tool_call>"
            )
        }
        [_, fahrenheit] => format!("Done.\n</think>\n\nIt is {fahrenheit} °F in Oslo. 🥶"),
        _ => panic!("{prompt}"),
    }
}

/// Serves the script over a checkpoint's tokenizer and template; gives the address for buyers.
async fn serve_script(checkpoint: &Path) -> String {
    engy_miner::tls::install();
    let checkpoint = Checkpoint::open(checkpoint).unwrap();
    let chat = ChatModel::open(&checkpoint)
        .unwrap()
        .with_parsers(Some(ReasoningParser::Qwen3), Some(ToolCallParser::Qwen3Coder));
    let end_id = chat.tokenizer().id("<|im_end|>").unwrap();
    let service = Service {
        backend: ScriptedModel::new(chat.clone(), end_id, qwen3_6) as Arc<dyn Backend>,
        chat,
        model: "scripted".into(),
        model_root: "none".into(),
        end_ids: vec![end_id],
        limits: Limits {
            context: 8192,
            max_input_tokens: 8000,
            max_output_tokens: 1000,
            default_max_tokens: 500,
            max_request: Duration::from_secs(60),
        },
        greedy: false,
        topk: 4,
        preparing: Service::places(),
    };
    serve(service).await.2
}

/// The fixture's tokenizer with a template that has tools and thoughts.
fn small_checkpoint(folder: &Path) {
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(fixture("models/tiny-llama").join(name), folder.join(name)).unwrap();
    }
    let template = "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>{% else %}{{ m.content }}{% endif %}\
        {% for call in m.tool_calls %}<tool_call>\n<function={{ call.function.name }}>\n\
        {% for key, value in call.function.arguments | items %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n\
        {% endfor %}</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n<think>\n";
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
}

fn request() -> Value {
    let tool = |name: &str, properties: Value| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}});
    json!({"model": "scripted", "messages": [{"role": "user", "content": "How warm is it in Oslo, in Fahrenheit?"}],
        "tools": [tool("get_weather", json!({"city": {"type": "string"}, "days": {"type": "integer"}})),
                  tool("to_fahrenheit", json!({"celsius": {"type": "number"}}))]})
}

async fn ask(base: &str, body: &Value) -> reqwest::Response {
    reqwest::Client::new().post(format!("{base}/v1/chat/completions")).json(body).send().await.unwrap()
}

/// The message that a stream's deltas add up to, and its finish reason.
fn add_up(events: &[Value]) -> (Value, Value) {
    let mut message = json!({"role": events[0]["choices"][0]["delta"]["role"], "content": null});
    let mut finish = Value::Null;
    let append = |place: &mut Value, more: &Value| {
        if let Some(more) = more.as_str().filter(|more| !more.is_empty()) {
            *place = format!("{}{more}", place.as_str().unwrap_or_default()).into();
        }
    };
    for event in events {
        let choice = &event["choices"][0];
        assert!(finish.is_null(), "{event}");
        finish = choice["finish_reason"].clone();
        let delta = choice["delta"].as_object().unwrap();
        for key in ["content", "reasoning_content"] {
            if let Some(more) = delta.get(key) {
                append(&mut message[key], more);
            }
        }
        for piece in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let call = &mut message["tool_calls"][piece["index"].to_string()];
            append(&mut call["id"], &piece["id"]);
            append(&mut call["type"], &piece["type"]);
            append(&mut call["function"]["name"], &piece["function"]["name"]);
            append(&mut call["function"]["arguments"], &piece["function"]["arguments"]);
        }
    }
    if let Some(calls) = message.get_mut("tool_calls") {
        *calls = calls.as_object().unwrap().values().cloned().collect();
    }
    (message, finish)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_its_answer_plain_and_streamed() {
    let folder = tempfile::tempdir().unwrap();
    small_checkpoint(folder.path());
    let base = serve_script(folder.path()).await;
    let mut turns = Vec::new();
    for stream in [false, true] {
        let mut body = request();
        body["stream"] = stream.into();
        for turn in 0..3 {
            let response = ask(&base, &body).await;
            let (mut message, finish) = if stream {
                add_up(&events(response).await)
            } else {
                let whole: Value = response.json().await.unwrap();
                (whole["choices"][0]["message"].clone(), whole["choices"][0]["finish_reason"].clone())
            };
            let call = message["tool_calls"][0].clone();
            body["messages"].as_array_mut().unwrap().push(message.clone());
            if turn < 2 {
                let result = ["{\"celsius\": -5}", "23"][turn];
                let result = json!({"role": "tool", "tool_call_id": call["id"], "content": result});
                body["messages"].as_array_mut().unwrap().push(result);
                message["tool_calls"][0]["id"] = Value::Null;
            }
            turns.push((message, finish));
        }
    }
    let call = |name: &str, arguments: &str| json!([{"id": null, "type": "function", "function": {"name": name, "arguments": arguments}}]);
    let expected = [
        (
            json!({"role": "assistant", "content": "Let me look.", "reasoning_content": "I need the weather first.",
                "tool_calls": call("get_weather", r#"{"city": "Oslo", "days": 1}"#)}),
            json!("tool_calls"),
        ),
        (
            json!({"role": "assistant", "content": null, "reasoning_content": "It is -5 degrees.",
                "tool_calls": call("to_fahrenheit", r#"{"celsius": -5}"#)}),
            json!("tool_calls"),
        ),
        (
            json!({"role": "assistant", "content": "It is 23 °F in Oslo. 🥶", "reasoning_content": "Done."}),
            json!("stop"),
        ),
    ];
    assert_eq!(turns[..3], expected);
    assert_eq!(turns[3..], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_budget_cuts_is_no_call_and_what_cannot_be_served_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    small_checkpoint(folder.path());
    let base = serve_script(folder.path()).await;
    for stream in [false, true] {
        let mut body = request();
        (body["max_completion_tokens"], body["stream"]) = (json!(90), stream.into());
        let response = ask(&base, &body).await;
        let (message, finish) = if stream {
            add_up(&events(response).await)
        } else {
            let whole: Value = response.json().await.unwrap();
            (whole["choices"][0]["message"].clone(), whole["choices"][0]["finish_reason"].clone())
        };
        let want =
            json!({"role": "assistant", "content": "Let me look.", "reasoning_content": "I need the weather first."});
        assert_eq!((message, finish), (want, json!("length")));
    }
    for (key, value, says) in [
        ("tool_choice", json!({"type": "function", "function": {"name": "rm"}}), "none of the tools"),
        ("response_format", json!({"type": "xml"}), "response_format"),
        ("logit_bias", json!({"5": 1}), "logit_bias"),
        ("n", json!(2), "n must be 1"),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "image_url",
        ),
    ] {
        let mut body = request();
        body[key] = value;
        let response = ask(&base, &body).await;
        assert_eq!(response.status(), 400, "{key}");
        let error: Value = response.json().await.unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains(says), "{error}");
    }
    // Without tools, the same words are an answer.
    let mut body = request();
    body["tool_choice"] = json!("none");
    let whole: Value = ask(&base, &body).await.json().await.unwrap();
    let choice = &whole["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().contains("<function=get_weather>"));
    assert_eq!((&choice["finish_reason"], choice["message"].get("tool_calls")), (&json!("stop"), None));
}

/// The program that `scripts/openai-python` prints, where it was made before: tests install nothing.
fn openai_python() -> Option<PathBuf> {
    let given = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = given("XDG_CACHE_HOME").or_else(|| Some(given("HOME")?.join(".cache")))?;
    Some(cache.join("engy-miner/openai-client/bin/python")).filter(|python| python.exists())
}

/// Processes that end with the test.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn engy_miner(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["300", env!("CARGO_BIN_EXE_engy-miner")]).args(args).env_clear().env("MINER_KEY", "mk-test");
    command.env("ENGY_LOG", "warn");
    command
}

/// The released checkpoint's folder as it is, but for rows as wide as the script's.
fn narrow(released: &Path, folder: &Path) {
    for name in ["chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::os::unix::fs::symlink(released.join(name), folder.join(name)).unwrap();
    }
    let mut config: Value = serde_json::from_slice(&std::fs::read(released.join("config.json")).unwrap()).unwrap();
    config["text_config"]["hidden_size"] = HIDDEN.into();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// A gateway and a miner as processes of their own, before a serve that writes the script; the address for buyers.
async fn as_processes(released: &Path, folder: &Path) -> (Running, String) {
    engy_miner::tls::install();
    narrow(released, folder);
    let chat = ChatModel::open(&Checkpoint::open(folder).unwrap()).unwrap();
    let end_id = chat.tokenizer().id("<|im_end|>").unwrap();
    let texts = chat.clone();
    let text = Arc::new(move |ids: &[u32]| texts.tokenizer().decode(ids));
    let model = ScriptedModel::new(chat, end_id, qwen3_6) as Arc<dyn Backend>;
    let mut config = FakeServeConfig::new(Dialect::V0_5_6, Engine::backend(model, text));
    config.prompt_block = PromptBlock::LastRow;
    let fake = FakeServe::spawn(config).await.unwrap();
    let spec = folder.join("scripted.toml");
    let rules = "name = \"scripted\"\ncontext = 8192\nmax_input_tokens = 8000\nmax_output_tokens = 1000\nmax_request_s = 60\n\
        reasoning_parser = \"qwen3\"\ntool_call_parser = \"qwen3_coder\"\n[toploc]\nk = 4\nv = 2\np = 0.99\n";
    std::fs::write(&spec, rules).unwrap();
    // Free a moment ago; the gateway takes it before anybody else asks.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let base = format!("http://127.0.0.1:{port}");
    let gateway = engy_miner(&["gateway", "--legs", "2", "--listen", &format!("127.0.0.1:{port}")]).spawn().unwrap();
    let ws = format!("ws://127.0.0.1:{port}/gw");
    let mut miner =
        engy_miner(&["mine", "--backend", "sglang", "--legs", "2", "--gw", &ws, "--serve-url", &fake.url()]);
    miner.arg("--checkpoint").arg(folder).arg("--spec").arg(&spec).arg("--state-dir").arg(folder.join("state"));
    let running = Running(vec![gateway, miner.spawn().unwrap()]);
    let models = format!("{base}/v1/models");
    let ready = async {
        loop {
            let listed = async { reqwest::get(&models).await?.text().await };
            if listed.await.is_ok_and(|listed| listed.contains("scripted")) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), ready).await.unwrap();
    (running, base)
}

// With Qwen3.6's own tokenizer and template, OpenAI's own client, and gateway and miner as an operator starts them.
#[tokio::test(flavor = "multi_thread")]
async fn the_openai_client_runs_an_agent_loop_on_the_released_tokenizer() {
    let assets = std::env::var_os("ENGY_TEST_ASSETS").filter(|folder| !folder.is_empty());
    let (Some(assets), Some(_)) = (assets, openai_python()) else {
        // Not `eprintln!`, which the test harness keeps to itself while tests pass.
        let line = "skipped, with nothing checked: needs ENGY_TEST_ASSETS and what scripts/openai-python installs";
        writeln!(std::io::stderr(), "{line}").unwrap();
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (_running, base) = as_processes(&Path::new(&assets).join("qwen3.6"), folder.path()).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/openai-agent-loop");
    let output = tokio::task::spawn_blocking(move || {
        let mut command = Command::new("timeout");
        command.args(["120", script, &base, "scripted", "23 °F"]).env("NO_PROXY", "127.0.0.1").output().unwrap()
    });
    let output = output.await.unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("all well"), "{text}");
}
