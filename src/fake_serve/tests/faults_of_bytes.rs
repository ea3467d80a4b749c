//! Responses that are none, and connections that break.

use super::*;
use crate::fake_serve::{CallEnd, ErrorForm, ScriptedReply};

/// What a client gets, or how it fails.
async fn got(fault: Fault) -> reqwest::Result<Got> {
    faulty(Dialect::V0_5_6, fault).await.try_post("/generate", &ask(&[1, 2], 40)).await
}

#[tokio::test]
async fn errors_have_the_form_that_is_asked_for() {
    for (form, status, named) in [
        (ErrorForm::Value, 400, vec!["error"]),
        (ErrorForm::Contract, 400, vec!["error"]),
        (ErrorForm::Validation, 400, vec!["object", "message", "type", "param", "code"]),
        (ErrorForm::Unprocessable, 422, vec!["detail"]),
        (ErrorForm::Detail, 503, vec!["detail"]),
        (ErrorForm::Unauthorized, 401, vec!["error"]),
        (ErrorForm::NotFound, 404, vec!["detail"]),
    ] {
        let got = got(Fault::Error(form)).await.unwrap();
        assert_eq!((got.status, keys(&got.json())), (status, named), "{form:?}");
        let (_, reply) = got.reply().unwrap();
        assert!(!reply.error.unwrap().message.is_empty());
    }
    let crash = got(Fault::Error(ErrorForm::Crash)).await.unwrap();
    assert_eq!((crash.status, crash.text().as_str()), (500, "Internal Server Error"));
    let busy = got(Fault::Busy).await.unwrap();
    assert_eq!((busy.status, &busy.json()["code"]), (503, &503.into()));
}

#[tokio::test]
async fn connections_break_before_and_in_the_reply() {
    assert!(got(Fault::ResetBeforeReply).await.is_err());
    for fault in [Fault::ResetAfter { bytes: 1000 }, Fault::CloseAfter { bytes: 1000 }] {
        let asker = faulty(Dialect::V0_5_6, fault.clone()).await;
        let cut = asker.generate(&ask(&[1, 2], 40)).await;
        assert!(cut.status == 200 && !cut.whole && cut.body.len() <= 1000, "{fault:?} {}", cut.body.len());
        if fault == (Fault::CloseAfter { bytes: 1000 }) {
            assert!(cut.body.len() > 500, "{}", cut.body.len());
        }
        asker.serve.wait_until(|status| status.generates().all(|call| call.end == Some(CallEnd::Broken))).await;
        // The next call has a connection of its own, and no fault.
        assert!(asker.generate(&ask(&[1, 2], 40)).await.whole);
        asker.serve.inject(Fault::CloseAfter { bytes: 5000 }).await;
        let cut = asker.generate(&ask_stream(&[1, 2], 40)).await;
        assert!(!cut.whole && cut.body.starts_with(b"data: {") && cut.body.len() < 5000);
    }
}

#[tokio::test]
async fn a_fault_that_comes_too_late_spares_the_next_call() {
    let asker = faulty(Dialect::V0_5_6, Fault::CloseAfter { bytes: 1 << 20 }).await;
    for _ in 0..20 {
        assert!(asker.generate(&ask(&[1], 200)).await.whole);
    }
}

#[tokio::test]
async fn bodies_are_no_replies() {
    let garbage = got(Fault::Garbage).await.unwrap();
    assert!(garbage.status == 200 && garbage.whole && garbage.reply().is_err());
    let page = got(Fault::HtmlPage).await.unwrap();
    assert_eq!((page.status, page.content_type.as_deref()), (502, Some("text/html")));
    assert!(matches!(page.reply().unwrap_err(), ReplyError::NotJson { .. }));
    let empty = got(Fault::EmptyBody).await.unwrap();
    assert!(empty.status == 200 && empty.whole && empty.body.is_empty());
    assert!(matches!(empty.reply().unwrap_err(), ReplyError::Truncated { offset: 0, .. }));
    let cut = got(Fault::CutBody { bytes: 700 }).await.unwrap();
    assert!(cut.whole && cut.body.len() == 700, "{}", cut.body.len());
    assert!(matches!(cut.reply().unwrap_err(), ReplyError::Truncated { offset: 700, .. }));
}

#[tokio::test]
async fn a_script_is_played_to_the_byte() {
    let json = json!({"text": "x", "meta_info": {"finish_reason": {"type": "stop"}}});
    let whole = got(Fault::Scripted(ScriptedReply::json(&json))).await.unwrap();
    assert_eq!((whole.status, whole.text()), (200, json.to_string()));
    let events = [json!({"text": "a"}), json!({"text": "ab"})];
    let stream = got(Fault::Scripted(ScriptedReply::events(&events))).await.unwrap();
    assert_eq!(stream.content_type.as_deref(), Some("text/event-stream; charset=utf-8"));
    assert_eq!(stream.events(), (events.to_vec(), true));
    for broken in [ScriptedReply::stream().event(&json).close(), ScriptedReply::stream().event(&json).reset()] {
        let got = got(Fault::Scripted(broken)).await.unwrap();
        assert!(!got.whole && got.text() == format!("data: {json}\n\n"), "{}", got.text());
    }
    let odd = ScriptedReply::new(418, "text/plain").bytes("tea").bytes("pot");
    let got = got(Fault::Scripted(odd)).await.unwrap();
    assert_eq!((got.status, got.text().as_str()), (418, "teapot"));
}
