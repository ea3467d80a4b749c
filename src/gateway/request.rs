//! Reads a buyer's request: what the gateway itself must know of it. All else goes to the miner as it came.

use axum::http::HeaderValue;
use serde_json::{Map, Value};

use super::buyer_error::BuyerError;
use crate::protocol::{GatewayFrame, Serve};

/// Longest id that a buyer may give a request: an id goes into a header and into paths.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// A chat request on its way to a miner.
#[derive(Debug)]
pub(super) struct BuyerRequest {
    body: Map<String, Value>,
    /// The model asked for, if any.
    pub(super) model: Option<String>,
    /// The request's name for buyer, miner and proof.
    pub(super) request_id: String,
    /// The same, as a header.
    pub(super) id_header: HeaderValue,
    /// Whether the answer is wanted piece by piece.
    pub(super) stream: bool,
    /// Whether the stream ends with token counts.
    pub(super) include_usage: bool,
}

impl BuyerRequest {
    /// Reads a body.
    ///
    /// # Errors
    ///
    /// 400 for a body that is no JSON object or that has a `model`, `stream` or `engy_request_id` of a wrong type.
    /// Faults in all other fields are for the miner to find.
    pub(super) fn read(body: &[u8]) -> Result<Self, BuyerError> {
        let body: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|error| BuyerError::bad_request(format!("the body is not a JSON object: {error}")))?;
        let model = match body.get("model") {
            None | Some(Value::Null) => None,
            Some(Value::String(model)) => Some(model.clone()),
            Some(_) => return Err(BuyerError::bad_request("`model` must be a string")),
        };
        let stream = match body.get("stream") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(stream)) => *stream,
            Some(_) => return Err(BuyerError::bad_request("`stream` must be true or false")),
        };
        let include_usage = body
            .get("stream_options")
            .and_then(|options| options.get("include_usage"))
            .and_then(Value::as_bool)
            .unwrap_or(false);
        let (request_id, id_header) = request_id(body.get("engy_request_id"))?;
        Ok(Self { body, model, request_id, id_header, stream, include_usage })
    }

    /// The text of the serve frame that carries this request, for `model` and under `corr_id`.
    ///
    /// # Errors
    ///
    /// When it cannot be written as JSON, which a request read from JSON always can.
    pub(super) fn into_serve(mut self, model: &str, corr_id: &str) -> Result<String, serde_json::Error> {
        self.body.insert("engy_request_id".to_owned(), self.request_id.into());
        self.body.insert("model".to_owned(), model.into());
        serde_json::to_string(&GatewayFrame::Serve(Serve {
            corr_id: corr_id.to_owned(),
            request: Value::Object(self.body),
            stream: self.stream,
        }))
    }
}

/// The buyer's id, if it gave a usable one, or a new one.
fn request_id(given: Option<&Value>) -> Result<(String, HeaderValue), BuyerError> {
    let id = match given {
        None | Some(Value::Null) => uuid::Uuid::new_v4().simple().to_string(),
        Some(Value::String(id)) if is_plain(id) => id.clone(),
        Some(_) => {
            return Err(BuyerError::bad_request(format!(
                "`engy_request_id` must be 1 to {MAX_REQUEST_ID_BYTES} letters, digits, `-`, `_` or `.`"
            )));
        }
    };
    let header = HeaderValue::from_str(&id)
        .map_err(|_| BuyerError::bad_request("`engy_request_id` does not fit into a header"))?;
    Ok((id, header))
}

fn is_plain(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES && id.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<BuyerRequest, BuyerError> {
        BuyerRequest::read(value.to_string().as_bytes())
    }

    #[test]
    fn everything_is_forwarded_and_an_id_is_added() {
        let sent = json!({"model": "m", "messages": [{"role": "user", "content": "é\u{1}"}], "max_completion_tokens": 5,
            "tools": [{"z": 1, "a": 2}], "seed": u64::MAX, "temperature": 0.1, "unheard_of": null, "stream": true,
            "stream_options": {"include_usage": true}});
        let request = read(&sent).unwrap();
        assert!(request.stream && request.include_usage);
        let id = request.request_id.clone();
        assert_eq!(id.len(), 32);
        let frame: Value = serde_json::from_str(&request.into_serve("m", "c-1").unwrap()).unwrap();
        assert_eq!(
            (&frame["type"], &frame["corr_id"], &frame["stream"]),
            (&json!("serve"), &json!("c-1"), &json!(true))
        );
        let mut expected = sent;
        expected["engy_request_id"] = json!(id);
        assert_eq!(frame["request"].to_string(), expected.to_string());
    }

    #[test]
    fn a_buyers_own_id_is_kept() {
        assert_eq!(read(&json!({"engy_request_id": "r-9001"})).unwrap().request_id, "r-9001");
        for bad in [json!(""), json!("a b"), json!("a/b"), json!("é"), json!(7), json!("x".repeat(129))] {
            assert!(read(&json!({"engy_request_id": bad})).is_err(), "{bad}");
        }
    }

    #[test]
    fn bodies_that_cannot_be_routed_are_refused() {
        for bad in [json!([]), json!("x"), json!({"model": 1}), json!({"stream": "yes"}), json!({"stream": 1})] {
            assert!(read(&bad).is_err(), "{bad}");
        }
        assert!(BuyerRequest::read(b"{\"model\": \"m\"").is_err());
        assert!(BuyerRequest::read(b"\xff").is_err());
        let deep = "[".repeat(100_000);
        assert!(BuyerRequest::read(format!("{{\"messages\": {deep}").as_bytes()).is_err());
    }
}
