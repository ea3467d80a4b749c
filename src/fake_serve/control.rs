//! All calls but `/generate`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::config::HiddenStatesFlag;
use super::dialect::Dialect;
use super::fault::ErrorForm;
use super::refusal::{Refusal, empty, plain};
use super::reply::now;
use super::server::{Health, Shared};

/// All arguments of a serve as 0.5.6 told them, which other versions have most of.
const SERVER_ARGS: &str = include_str!("server_args.json");
/// The key that no real serve has, in `/get_server_info`.
const CONFESSION: &str = "fake_serve";

type Serve = State<Arc<Shared>>;

/// `GET /health`
pub(super) async fn health(State(shared): Serve) -> Response {
    let mut health = shared.health.subscribe();
    // Whoever still waits when it is healed gets an answer.
    let told = health.wait_for(|health| *health != Health::Silent).await.map(|health| *health);
    match told {
        Ok(Health::Unwell) if shared.config.dialect.health_tells_start() => empty(503),
        _ => empty(200),
    }
}

/// `GET /health_generate`: generates a token.
pub(super) async fn health_generate(shared: Serve) -> Response {
    health(shared).await
}

/// `GET /ready`
pub(super) async fn ready(State(shared): Serve) -> Response {
    empty(if *shared.health.borrow() == Health::Unwell { 503 } else { 200 })
}

/// Any other path.
pub(super) async fn not_found() -> Response {
    ErrorForm::NotFound.response()
}

/// `GET /get_model_info`, `/model_info`
pub(super) async fn model_info(State(shared): Serve) -> Json<Value> {
    let (dialect, path) = (shared.config.dialect, &shared.config.model_path);
    let mut info = Map::new();
    let mut tell = |key: &str, value: Value| drop(info.insert(key.to_owned(), value));
    tell("model_path", path.clone().into());
    if dialect >= Dialect::V0_5_23 {
        tell("served_model_name", path.clone().into());
    }
    tell("tokenizer_path", path.clone().into());
    tell("is_generation", true.into());
    tell("preferred_sampling_params", Value::Null);
    if dialect.has_weight_version() {
        tell("weight_version", "default".into());
    }
    if dialect >= Dialect::V0_5_23 {
        tell("load_format", "auto".into());
        tell("reasoning_parser", Value::Null);
        tell("tool_call_parser", Value::Null);
        tell("disaggregation_mode", "null".into());
    }
    if dialect >= Dialect::V0_5_6 {
        tell("has_image_understanding", false.into());
        tell("has_audio_understanding", false.into());
    }
    if dialect >= Dialect::V0_5_10 {
        tell("model_type", "fake".into());
        tell("architectures", json!([shared.config.engine.architecture()]));
    }
    Json(info.into())
}

/// `GET /get_server_info`, `/server_info`: the arguments, what the scheduler found, and that this is no real serve.
pub(super) async fn server_info(State(shared): Serve) -> Json<Value> {
    let (config, dialect) = (&shared.config, shared.config.dialect);
    let mut info = arguments(&shared);
    let internal_state = {
        let mut state = info.clone();
        let pool = config.max_total_tokens;
        state.insert("use_mla_backend".into(), false.into());
        state.insert("last_gen_throughput".into(), json!(0.0));
        let memory = json!({"weight": 0.0, "kvcache": 0.0, "token_capacity": pool, "graph": 0});
        state.insert("memory_usage".into(), memory);
        state
    };
    let mut tell = |key: &str, value: Value| drop(info.insert(key.to_owned(), value));
    tell("status", "ready".into());
    tell("max_total_num_tokens", config.max_total_tokens.into());
    tell("max_req_input_len", config.max_input().into());
    if dialect >= Dialect::V0_5_23 {
        tell("launch_command", "engy-miner fake-serve".into());
        tell("kv_events", Value::Null);
        tell("startup_time", 0.into());
    }
    tell("internal_states", json!([internal_state]));
    tell("version", dialect.version().into());
    if dialect >= Dialect::V0_5_23 {
        tell("frontend", "python".into());
    }
    tell(CONFESSION, "no sglang: the stand-in of engy-miner".into());
    Json(info.into())
}

fn arguments(shared: &Shared) -> Map<String, Value> {
    let (config, dialect) = (&shared.config, shared.config.dialect);
    let mut args: Map<String, Value> = serde_json::from_str(SERVER_ARGS).unwrap_or_default();
    let mut tell = |key: &str, value: Value| drop(args.insert(key.to_owned(), value));
    for key in ["model_path", "tokenizer_path", "served_model_name"] {
        tell(key, config.model_path.clone().into());
    }
    tell("context_length", config.context.into());
    tell("host", config.listen.ip().to_string().into());
    tell("port", config.listen.port().into());
    tell("max_running_requests", config.max_running.into());
    tell("max_queued_requests", config.max_queued.into());
    tell("max_total_tokens", config.max_total_tokens.into());
    tell("chunked_prefill_size", config.chunked_prefill_size.map_or((-1).into(), Into::into));
    tell("stream_interval", config.stream_interval.into());
    tell("disable_radix_cache", (!config.radix_cache).into());
    tell("allow_auto_truncate", config.allow_auto_truncate.into());
    tell("speculative_algorithm", config.speculative_algorithm.clone().into());
    // Seeds are honoured, which takes this flag.
    tell("enable_deterministic_inference", dialect.has_sampling_seed().into());
    let states = config.hidden_states;
    tell("enable_return_hidden_states", (states == HiddenStatesFlag::On).into());
    if dialect.has_hidden_states_mode() {
        let mode = match states {
            HiddenStatesFlag::Off => Value::Null,
            HiddenStatesFlag::LastOnly => "last".into(),
            HiddenStatesFlag::On => "full".into(),
        };
        tell("return_hidden_states_mode", mode);
    }
    let switch = dialect.incremental_switch();
    tell(switch, config.incremental_output.into());
    if switch != "stream_output" {
        args.shift_remove("stream_output");
    }
    args
}

/// `GET /get_load`
pub(super) async fn get_load(State(shared): Serve) -> Json<Value> {
    let counts = shared.calls.counts();
    let requests = counts.running + counts.waiting;
    Json(match shared.config.dialect {
        Dialect::V0_4_9 | Dialect::V0_5_2 => json!({"load": counts.tokens}),
        Dialect::V0_5_6 => json!([{
            "rid": null, "http_worker_ipc": null, "dp_rank": null, "num_reqs": requests,
            "num_waiting_reqs": counts.waiting, "num_tokens": counts.tokens}]),
        Dialect::V0_5_10 => json!([{
            "rid": null, "http_worker_ipc": null, "dp_rank": null, "num_reqs": requests,
            "num_waiting_reqs": counts.waiting, "num_tokens": counts.tokens, "ts_tic": now()}]),
        Dialect::V0_5_15 | Dialect::V0_5_23 => json!([{
            "dp_rank": 0, "num_reqs": requests, "num_waiting_reqs": counts.waiting, "num_tokens": counts.tokens,
            "num_pending_tokens": 0, "ts_tic": now()}]),
    })
}

/// `GET /v1/loads`
pub(super) async fn v1_loads(State(shared): Serve) -> Json<Value> {
    let (counts, config) = (shared.calls.counts(), &shared.config);
    let usage = counts.tokens as f64 / config.max_total_tokens.max(1) as f64;
    let load = json!({
        "timestamp": now(), "dp_rank": 0, "num_running_reqs": counts.running, "num_waiting_reqs": counts.waiting,
        "num_used_tokens": counts.tokens, "num_total_tokens": counts.tokens,
        "max_total_num_tokens": config.max_total_tokens, "max_running_requests": config.max_running,
        "token_usage": usage, "gen_throughput": 0.0, "cache_hit_rate": 0.0, "utilization": usage});
    Json(json!({"timestamp": now(), "version": config.dialect.version(), "loads": [load]}))
}

/// `GET` or `POST /flush_cache`
pub(super) async fn flush_cache(State(shared): Serve) -> Response {
    let counts = shared.calls.counts();
    let told = "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, \
                the operation will not be performed.)\n";
    plain(if counts.running + counts.waiting == 0 { 200 } else { 400 }, told)
}

/// `POST /abort_request`: 200 and nothing, whether there was such a request or not.
pub(super) async fn abort_request(State(shared): Serve, body: Bytes) -> Response {
    let Ok(Value::Object(asked)) = serde_json::from_slice(&body) else {
        return Refusal::Validation("1 validation error:\n  Input should be a valid dictionary".into()).response();
    };
    let rid = asked.get("rid").and_then(Value::as_str).unwrap_or_default();
    let all = asked.get("abort_all").and_then(Value::as_bool).unwrap_or_default();
    shared.calls.abort(rid, all, shared.config.abort_match);
    empty(200)
}
