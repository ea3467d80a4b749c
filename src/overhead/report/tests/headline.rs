//! The answer, for data of all kinds.

use super::super::answer::{Statement, answer};
use super::super::view::View;
use super::sample;
use crate::overhead::{Cell, Estimate, Matrix, Proofs};

fn said(cells: &[Cell], matrix: Option<&Matrix>) -> Vec<Statement> {
    answer(&View { run: &sample::run(), cells, matrix })
}

fn texts(cells: &[Cell], matrix: Option<&Matrix>) -> Vec<String> {
    said(cells, matrix).into_iter().map(|statement| statement.text).collect()
}

/// candle alone, at as many loads as there are estimates.
fn candle(costs: &[Estimate]) -> Vec<Cell> {
    let cell = |(place, &cost): (usize, &Estimate)| {
        let mut cell = sample::cell("candle", Proofs::Host, (1 << place, 64));
        let overhead = cell.overhead.as_mut().unwrap();
        (overhead.time_pct, overhead.pairs) = (cost, if cost.low.is_some() { 12 } else { 3 });
        cell
    };
    costs.iter().enumerate().map(cell).collect()
}

/// What is said of candle at loads with these costs.
fn of_candle(costs: &[Estimate]) -> String {
    texts(&candle(costs), None).swap_remove(0)
}

fn alone(value: f64) -> Estimate {
    Estimate { value, low: None, high: None }
}

#[test]
fn all_of_it() {
    assert_eq!(
        texts(&sample::cells(), Some(&sample::matrix())),
        [
            "In process (candle), proofs add 0.34 % to 0.48 % to the time of a token after the first over 4 loads. The most is \
             0.48 % (95 % interval -0.02 to 1.03), with 8 requests at once, 256 tokens an answer. At no load can it be told from \
             nothing.",
            "Over HTTP (sglang), proofs add 23.0 % to 30.0 % to the time of a token after the first over 4 loads. The most is \
             30.0 % (95 % interval 27.6 to 32.6), with one request at a time, 256 tokens an answer. At every load that is more \
             than chance explains.",
            "Hidden states cross HTTP as 31.4 kB of JSON a token, 6.1 times the 5.12 kB of bf16; the proof takes 10.8 B. With \
             proofs, the processor time of miner and serve together grows by 1,440 µs (95 % interval 1,360 to 1,528) a token.",
            "Cross-verification: all 16 honest pairs of maker and verifier pass (worst batch: 12 mismatches, 40 are allowed); all \
             8 pairs with a control are rejected (the closest has 68.0 mismatches a batch on average).",
        ]
    );
}

#[test]
fn one_load() {
    assert_eq!(
        of_candle(&[sample::around(0.3, 0.5)]),
        "In process (candle), proofs add 0.3 % (95 % interval -0.2 to 0.9) to the time of a token after the first, with one \
         request at a time, 64 tokens an answer. That cannot be told from nothing."
    );
    let dear = of_candle(&[sample::around(12.0, 1.0)]);
    assert!(dear.contains("add 12.0 % (95 % interval 11.0 to 13.1)"), "{dear}");
    assert!(dear.ends_with("That is more than chance explains."), "{dear}");
    let gain = of_candle(&[sample::around(-3.0, 1.0)]);
    assert!(
        gain.contains("proofs change the time of a token after the first by -3.0 % (95 % interval -4.0 to -1.9), with")
    );
    assert!(gain.ends_with("less than without proofs, by more than chance explains."), "{gain}");
}

#[test]
fn several_loads() {
    let mixed = of_candle(&[sample::around(0.1, 9.0), sample::around(2.0, 1.0), sample::around(-0.4, 1.0)]);
    assert!(mixed.contains("by -0.4 % to 2.0 % over 3 loads. The most is 2.0 % (95 % interval 1.0 to 3.1)"), "{mixed}");
    assert!(mixed.contains("; the interval of another load reaches 10.0 %. At 1 of the 3 loads"), "{mixed}");
    let both = of_candle(&[sample::around(-5.0, 1.0), sample::around(5.0, 1.0)]);
    assert!(both.ends_with("at 1 of the 2 loads where it is more, and at 1 where it is less."), "{both}");
}

#[test]
fn too_few_pairs_for_an_interval() {
    let one = of_candle(&[alone(0.3)]);
    assert!(one.contains("proofs add 0.3 % to the time"), "{one}");
    assert!(
        one.ends_with("It has no interval, which takes six pairs of turns: it is an indication and no more."),
        "{one}"
    );
    let none = of_candle(&[alone(0.3), alone(0.4)]);
    assert!(none.contains("All 2 lack an interval"), "{none}");
    let some = of_candle(&[alone(0.3), sample::around(0.4, 1.0)]);
    assert!(some.contains("1 of the 2 have no interval"), "{some}");
}

#[test]
fn what_was_not_measured_is_not_answered() {
    let nothing = texts(&[], None);
    assert_eq!(nothing[0], "What proofs cost is not known: no turn was measured.");
    assert_eq!(nothing[1], "Whether proofs hold across backends was not measured: there is no matrix.");
    let off = texts(&[sample::cell("sglang", Proofs::Off, (1, 64))], None);
    assert_eq!(off[0], "Over HTTP (sglang), what proofs cost is not known: no turn with proofs was measured.");
    assert_eq!(off.len(), 2, "nothing of bytes: {off:?}");
    let unpaired = texts(&[Cell { overhead: None, ..sample::cell("candle", Proofs::Host, (1, 64)) }], None);
    assert!(unpaired[0].ends_with("no turns with proofs were paired with turns without."), "{unpaired:?}");
    let broken = of_candle(&[alone(f64::NAN)]);
    assert!(broken.contains("is not known"), "{broken}");
}

#[test]
fn a_serve_that_runs_elsewhere() {
    let mut cell = sample::cell("sglang", Proofs::Host, (1, 64));
    cell.cpu_us_per_token.serve = None;
    let said = texts(&[cell], None);
    assert!(said[1].contains("the processor time of the miner alone grows by"), "{said:?}");
    assert!(said[1].ends_with("what it costs the serve is not known."), "{said:?}");
}

#[test]
fn an_accepted_control_comes_first_and_loud() {
    let mut matrix = sample::matrix();
    let cell = matrix.cells.iter_mut().find(|cell| cell.control && cell.verifier == "sglang").unwrap();
    cell.passed = 3;
    let said = said(&sample::cells(), Some(&matrix));
    let alarms: Vec<&str> = said.iter().filter(|said| said.alarm).map(|said| said.text.as_str()).collect();
    assert_eq!(
        alarms,
        [
            "CONTROL ACCEPTED: 3 of 16 answers of “candle q4_0 weights” under “sglang” passed. Such proofs do not tell other \
          weights from the checkpoint's."
        ]
    );
    assert!(said[0].alarm, "before what proofs cost");
    assert!(said.last().unwrap().text.contains("7 of 8 pairs with a control are rejected"));
    let page = super::html(&sample::run(), &sample::cells(), Some(&matrix)).unwrap();
    assert!(page.contains("<p class=\"alarm\" role=\"alert\">CONTROL ACCEPTED"));
    assert!(super::markdown(&sample::run(), &[], Some(&matrix)).contains("**CONTROL ACCEPTED"));
}

#[test]
fn a_rejected_honest_answer_is_an_alarm_too() {
    let mut matrix = sample::matrix();
    for cell in matrix.cells.iter_mut().filter(|cell| cell.maker == "sglang" && cell.verifier != "sglang") {
        cell.passed = if cell.verifier == "candle kv=bf16" { 11 } else { 15 };
    }
    let said = said(&[], Some(&matrix));
    assert!(said[0].alarm);
    assert_eq!(
        said[0].text,
        "HONEST ANSWERS REJECTED: 5 of 16 answers of “sglang” under “candle kv=bf16” failed, the worst of 3 such pairs. An \
         honest miner would be refused."
    );
    assert!(said.last().unwrap().text.contains("13 of 16 honest pairs"));
}

#[test]
fn a_matrix_that_shows_little_says_so() {
    let honest = sample::matrix_of(&["candle", "sglang"], &[]);
    let said = texts(&[], Some(&honest));
    assert!(
        said[1].contains("no control was among the makers, so nothing shows that other weights are rejected"),
        "{said:?}"
    );
    let mut empty = sample::matrix_of(&["candle"], &["q4"]);
    for cell in &mut empty.cells {
        (cell.answers, cell.passed) = (0, 0);
    }
    let said = texts(&[], Some(&empty));
    assert!(!said.iter().any(|said| said.contains("all 1")), "{said:?}");
    assert_eq!(said[2], "2 pairs of maker and verifier had no answer to judge.");
}
