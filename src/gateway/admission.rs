//! Judges a leg's hello.

use crate::protocol::{Hello, MinerFrame, MinerKey};
use serde_json::Value;

/// Reads and judges the first frame of a leg.
///
/// # Errors
///
/// The reason to deny, in words for the miner's operator. It never holds the key.
pub(super) fn judge(first_frame: &str, key: Option<&MinerKey>) -> Result<Hello, String> {
    let hello = match serde_json::from_str::<MinerFrame>(first_frame) {
        Ok(MinerFrame::Hello(hello)) => *hello,
        Ok(_) => return Err("the first frame must be a hello".to_owned()),
        Err(error) => return Err(unreadable(first_frame, &error)),
    };
    if key.is_some_and(|key| *key != hello.miner_key) {
        return Err("unknown miner key".to_owned());
    }
    let fault = if hello.model.is_empty() {
        "model is empty"
    } else if hello.worker_id.is_empty() {
        // A re-dial is told from a second worker by this id alone.
        "worker_id is empty"
    } else if hello.capacity.max_inflight_total.is_none() {
        "capacity.max_inflight_total is missing"
    } else if hello.capacity.max_inflight == 0 {
        "capacity.max_inflight is 0: such a leg takes no request"
    } else {
        return Ok(hello);
    };
    Err(fault.to_owned())
}

/// Names the missing or wrong field of a hello; says no more of a frame that is none.
fn unreadable(frame: &str, error: &serde_json::Error) -> String {
    let is_hello = serde_json::from_str::<Value>(frame).is_ok_and(|value| value["type"] == "hello");
    if is_hello { format!("unreadable hello: {error}") } else { "the first frame must be a hello".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::tests::fake_miner::hello;
    use serde_json::json;

    fn judged(value: &Value) -> Result<Hello, String> {
        judge(&value.to_string(), Some(&MinerKey::new("mk-test")))
    }

    #[test]
    fn a_whole_hello_is_admitted() {
        assert_eq!(judged(&hello("m", "w", 2)).unwrap().capacity.max_inflight, 2);
        let mut other_key = hello("m", "w", 2);
        other_key["miner_key"] = json!("mk-other");
        assert!(judge(&other_key.to_string(), None).is_ok(), "no key asked, any key admitted");
        assert_eq!(judged(&other_key).unwrap_err(), "unknown miner key");
    }

    #[test]
    fn the_reason_names_the_field() {
        let denied = |change: fn(&mut Value)| {
            let mut value = hello("m", "w", 2);
            change(&mut value);
            judged(&value).unwrap_err()
        };
        let drop_total =
            |hello: &mut Value| drop(hello["capacity"].as_object_mut().unwrap().remove("max_inflight_total"));
        assert!(denied(drop_total).contains("capacity.max_inflight_total is missing"));
        assert!(denied(|hello| hello["capacity"]["max_inflight"] = json!(0)).contains("max_inflight is 0"));
        assert!(denied(|hello| hello["capacity"]["max_inflight"] = json!(-1)).contains("unreadable hello"));
        assert!(denied(|hello| hello["model"] = json!("")).contains("model"));
        assert!(denied(|hello| hello["worker_id"] = json!("")).contains("worker_id"));
        let drop_root = |hello: &mut Value| drop(hello.as_object_mut().unwrap().remove("model_root"));
        assert!(denied(drop_root).contains("model_root"));
    }

    #[test]
    fn anything_else_first_is_refused() {
        for frame in ["", "{", "null", "[]", r#"{"type":"heartbeat","inflight":0,"idle_seconds":0}"#, r#"{"type":"x"}"#]
        {
            assert_eq!(judge(frame, None).unwrap_err(), "the first frame must be a hello", "{frame}");
        }
    }
}
