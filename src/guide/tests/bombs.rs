//! Schemas made to take time and memory: each is refused or held, and soon.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::{Site, json_under};

/// Far above what any takes on a machine with nothing else to do.
const SOON: Duration = Duration::from_secs(30);

fn nested(depth: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(json!({"type": "integer"}), |inner, _| wrap(inner))
}

/// What can arrive: JSON is read 128 levels deep.
pub(super) fn bombs() -> Vec<(&'static str, Value)> {
    let many = |count: usize| {
        (0..count).map(|at| (format!("key{at}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>()
    };
    let ten = json!({"anyOf": (0..10).map(|at| json!({"properties": {format!("k{at}"): {"type": "integer"}}})).collect::<Vec<_>>()});
    let doubled = (1..20).map(|at| {
        let below = json!({"$ref": format!("#/$defs/d{}", at - 1)});
        (
            format!("d{at}"),
            json!({"anyOf": [{"type": "array", "items": below}, {"type": "object", "properties": {"a": below}}]}),
        )
    });
    let mut defs: serde_json::Map<_, _> = doubled.collect();
    defs.insert("d0".into(), json!({"type": "integer"}));
    vec![
        ("repeats of repeats", json!({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"})),
        ("many states", json!({"type": "string", "pattern": "^(.*a.{20})+b$"})),
        ("a long text", json!({"type": "string", "minLength": 1_000_000_000, "maxLength": 2_000_000_000})),
        ("a long list", json!({"type": "array", "items": {"type": "string"}, "minItems": 10_000_000})),
        (
            "a list of lists",
            nested(120, |inner| json!({"type": "array", "items": inner, "minItems": 1000, "maxItems": 2000})),
        ),
        ("deep", nested(60, |inner| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]}))),
        ("parts of choices", json!({"allOf": (0..10).map(|_| ten.clone()).collect::<Vec<_>>()})),
        ("names itself", json!({"$ref": "#"})),
        (
            "name each other",
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ),
        ("doubles", json!({"$ref": "#/$defs/d19", "$defs": defs})),
        ("many keys", json!({"type": "object", "properties": many(8000)})),
        ("many words", json!({"enum": (0..20_000).map(|at| format!("word {at}")).collect::<Vec<_>>()})),
        ("large", json!({"enum": ["x".repeat(600 << 10)]})),
        ("fine steps", json!({"type": "number", "multipleOf": 1e-300, "minimum": -1e300, "maximum": 1e300})),
        (
            "keys by pattern",
            json!({"type": "object", "patternProperties": {"^(a+)+$": {}, "^(a|aa)+b$": {"type": "null"}}}),
        ),
    ]
}

#[test]
fn none_takes_long() {
    let site = Site::tiny();
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    // The trie is made with the first.
    drop(site.guide(json_under(json!({}))).unwrap());
    for (name, schema) in bombs() {
        let began = Instant::now();
        let outcome = site.guide(json_under(schema)).map(|mut guide| {
            let mut tokens = 0;
            while tokens < 50 && began.elapsed() < SOON {
                let Ok(mask) = guide.mask() else { break };
                let allowed: Vec<u32> = (0..400).filter(|id| mask.allows(*id)).collect();
                let id = allowed[rand::Rng::random_range(&mut rng, 0..allowed.len())];
                if site.end_ids.contains(&id) {
                    break;
                }
                guide.accept(id);
                tokens += 1;
            }
            let end = guide.mask().err();
            format!("{tokens} tokens, {end:?}")
        });
        let took = began.elapsed();
        assert!(took < SOON, "{name} took {took:?}: {outcome:?}");
    }
}
