//! Any text, in any pieces.
//!
//! `PROPTEST_CASES` sets how many texts each property is tried on. What once failed is kept in `proptest-regressions`.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// Texts that look like a model's: tags whole, cut and damaged, values, names known and not, and anything at all.
fn text() -> impl Strategy<Value = String> {
    let tags = select(vec![
        "<tool_call>",
        "</tool_call>",
        "<function=now>",
        "<function=write>",
        "<function=rm>",
        "<function=",
        "</function>",
        "<parameter=path>",
        "<parameter=content>",
        "<parameter=mode>",
        "<parameter=other>",
        "<parameter=",
        "</parameter>",
        "<think>",
        "</think>",
        "\n",
        "\n",
        "\n",
        " ",
        "  \n",
        ">",
        "<",
        "</",
        "{",
        "}",
        "\"",
        "'",
        "null",
        "NaN",
        "1e999",
        "7",
        "{\"name\": \"now\"}",
        "{\"name\": \"write\", \"arguments\": {\"path\": \"a\"",
        "[1, 2]",
        "value",
        "é😀",
        "\\",
    ]);
    let cut = (tags.clone(), 0..12_usize).prop_map(|(tag, end)| tag.chars().take(end).collect::<String>());
    let piece = prop_oneof![8 => tags.prop_map(str::to_owned), 2 => cut, 1 => any::<String>(), 1 => "[ -~\n]{0,12}"];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

fn scene() -> impl Strategy<Value = Scene> {
    let declared = tools(&[
        ("now", json!({})),
        ("write", json!({"path": {"type": "string"}, "content": {"type": "object"}, "mode": {"type": "number"}})),
    ]);
    let forms = select(vec![ToolCallParser::Qwen3Coder, ToolCallParser::Hermes]);
    (text(), any::<[bool; 4]>(), forms).prop_map(move |(text, [tools, in_thought, single, cut], form)| Scene {
        text,
        tools: if tools { declared.clone() } else { Value::Null },
        form,
        in_thought,
        single,
        cut,
    })
}

/// Cuts a text at these places, each taken as a share of what there is.
fn pieces<'a>(text: &'a str, cuts: &[prop::sample::Index]) -> Vec<&'a str> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| text.floor_char_boundary(cut.index(text.len() + 1))).collect();
    places.extend([0, text.len()]);
    places.sort_unstable();
    places.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
}

proptest! {
    // Deltas are the message, arguments are JSON objects, no part is empty: checked wherever an outcome is made.
    #[test]
    fn pieces_change_nothing(scene in scene(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30)) {
        let whole = scene.whole();
        prop_assert_eq!(scene.in_pieces(pieces(&scene.text, &cuts)), whole.clone());
        prop_assert_eq!(scene.per_char(), whole);
    }

    #[test]
    fn ids_of_any_kind_are_read(scene in scene(), ids in prop::collection::vec(0..390_u32, 0..60)) {
        let tokenizer = Arc::new(fixture());
        let encoded = tokenizer.encode(&scene.text).unwrap();
        scene.by_ids(Arc::clone(&tokenizer), &encoded);
        scene.by_ids(Arc::clone(&tokenizer), &scene.text.bytes().map(u32::from).collect::<Vec<_>>());
        scene.by_ids(tokenizer, &ids);
    }

    /// A thought is told by a letter that only it has.
    #[test]
    fn a_thought_never_shows_in_the_content(scene in scene(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30)) {
        let mut thought = scene.text.clone();
        while thought.contains("</think>") {
            thought = thought.replace("</think>", "");
        }
        let mark = |letter: char| match letter {
            ' ' | '\n' | 'e' => vec![letter, '\u{2603}'],
            _ => vec![letter],
        };
        let marked: String = thought.chars().flat_map(mark).collect();
        let text = format!("{marked}\u{2603}</think>{}", scene.text.replace('\u{2603}', ""));
        let outcome = Scene { in_thought: true, text: text.clone(), ..scene }.in_pieces(pieces(&text, &cuts));
        prop_assert!(outcome.content().is_none_or(|content| !content.contains('\u{2603}')), "{:?}", outcome);
    }

    #[test]
    fn without_tools_and_thoughts_nothing_is_lost(text in text()) {
        let outcome = Scene::new(&text, Value::Null).whole();
        let content = outcome.content().unwrap_or_default();
        if !text.trim_start().starts_with("<think>") && !text.trim_start().starts_with("</think>") {
            prop_assert!(content == text || (content.is_empty() && text.trim().is_empty()), "{:?}", outcome);
        }
    }

    /// Any text goes through a call as a value and comes out as it was, where it holds no tags of the form.
    #[test]
    fn values_survive(value in any::<String>()) {
        let text = format!("<tool_call>\n<function=f>\n<parameter=v>\n{value}\n</parameter>\n</function>\n</tool_call>");
        let outcome = Scene::new(&text, tools(&[("f", json!({"v": {"type": "string"}}))])).whole();
        if !value.contains('<') && !value.eq_ignore_ascii_case("null") {
            let arguments: Value = serde_json::from_str(outcome.calls()[0].1).unwrap();
            prop_assert_eq!(arguments["v"].as_str(), Some(value.as_str()));
        }
    }
}
