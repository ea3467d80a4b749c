//! The answer, for data of all kinds.

use super::super::answer::{Statement, answer};
use super::super::view::View;
use super::sample;
use crate::overhead::{BackendOverhead, Cell, Estimate, Matrix, Proofs, Role, Run};

fn said(run: &Run, cells: &[Cell], matrix: Option<&Matrix>) -> Vec<Statement> {
    answer(&View { run, cells, matrix })
}

fn texts(overhead: Vec<BackendOverhead>, cells: &[Cell], matrix: Option<&Matrix>) -> Vec<String> {
    let run = Run { overhead, ..sample::run() };
    said(&run, cells, matrix).into_iter().map(|statement| statement.text).collect()
}

/// What is said of candle, of all loads and of as many loads as there are costs.
fn of_candle(all: Estimate, costs: &[Estimate]) -> String {
    let cell = |(place, &cost): (usize, &Estimate)| {
        let mut cell = sample::cell("candle", Proofs::Host, (1 << place, 64));
        cell.overhead.as_mut().unwrap().time_pct = cost;
        cell
    };
    let cells: Vec<Cell> = costs.iter().enumerate().map(cell).collect();
    texts(vec![sample::pooled("candle", all)], &cells, None).swap_remove(0)
}

/// What is said of processor time.
fn processor_time(candle: Estimate, sglang: Estimate) -> String {
    let of = |backend, estimate| {
        let mut of = sample::pooled(backend, alone(1.0));
        of.overhead.fin_cpu_us_per_token = estimate;
        of
    };
    texts(vec![of("candle", candle), of("sglang", sglang)], &sample::cells(), None).swap_remove(2)
}

fn alone(value: f64) -> Estimate {
    Estimate { value, low: None, high: None }
}

#[test]
fn all_of_it() {
    assert_eq!(
        texts(sample::run().overhead, &sample::cells(), Some(&sample::matrix())),
        [
            "In process (candle), proofs add 0.4 % (95 % interval 0.2 to 0.7) to the time of a token after the first over 48 \
             pairs of turns: that is more than chance explains; the worst of 4 loads has 0.48 % (95 % interval -0.02 to 1.03), \
             with 8 requests at once, 256 tokens an answer.",
            "Over HTTP (sglang), proofs add 26.4 % (95 % interval 25.1 to 27.8) to the time of a token after the first over 48 \
             pairs of turns: that is more than chance explains; the worst of 4 loads has 30.0 % (95 % interval 27.6 to 32.6), \
             with one request at a time, 256 tokens an answer.",
            "On their way to the proof, hidden states take 23.0 µs (95 % interval 21.5 to 24.6) of processor \
             time a token in process (candle), and 1,460 µs (95 % interval 1,430 to 1,493) over HTTP (sglang): in process it is \
             63.5 times less. Folding them into proofs takes 21.0 µs more.",
            "Hidden states cross HTTP as 31.4 kB of JSON a token, 6.1 times the 5.12 kB of bf16; the proof takes 10.8 B.",
            "Cross-verification: all 16 honest pairs of maker and verifier pass (worst batch: 12 mismatches, 40 are allowed); all \
             8 pairs with a control are rejected (the closest has 68.0 mismatches a batch on average).",
            "Of 3 makers at the edge (weights a little off), the policy accepts “noise of 3 %”, rejects “no layer 8”, and is \
             split on “int4 weights” (32 of 64 judgements accept).",
        ]
    );
}

#[test]
fn one_load() {
    let around = sample::around;
    assert_eq!(
        of_candle(around(0.3, 0.5), &[around(0.3, 0.5)]),
        "In process (candle), proofs add 0.3 % (95 % interval -0.2 to 0.9) to the time of a token after the first over 48 \
         pairs of turns with one request at a time, 64 tokens an answer: that cannot be told from nothing."
    );
    let dear = of_candle(around(12.0, 1.0), &[around(12.0, 1.0)]);
    assert!(dear.contains("add 12.0 % (95 % interval 11.0 to 13.1)"), "{dear}");
    assert!(dear.ends_with("that is more than chance explains."), "{dear}");
    let gain = of_candle(around(-3.0, 1.0), &[around(-3.0, 1.0)]);
    assert!(
        gain.contains(
            "proofs change the time of a token after the first by -3.0 % (95 % interval -4.0 to -1.9) over 48"
        ),
        "{gain}"
    );
    assert!(gain.ends_with("less than without proofs, by more than chance explains."), "{gain}");
}

#[test]
fn the_worst_load_follows() {
    let around = sample::around;
    let mixed = of_candle(around(0.5, 0.6), &[around(0.1, 9.0), around(2.0, 1.0), around(-0.4, 1.0)]);
    assert!(
        mixed.ends_with(
            ": that cannot be told from nothing; the worst of 3 loads has 2.0 % (95 % interval 1.0 to 3.1), with 2 requests at \
             once, 64 tokens an answer."
        ),
        "{mixed}"
    );
    let bare = of_candle(alone(0.3), &[alone(0.3), alone(0.4)]);
    assert!(
        bare.contains(
            "add 0.3 % to the time of a token after the first over 48 pairs of turns: with no interval, which takes six pairs, \
             that is an indication and no more; the worst of 2 loads has 0.4 %, with"
        ),
        "{bare}"
    );
    let mut one = sample::pooled("candle", alone(0.3));
    one.overhead.pairs = 1;
    let one = texts(vec![one], &sample::cells(), None).swap_remove(0);
    assert!(one.contains("over one pair of turns: with no interval"), "{one}");
}

#[test]
fn processor_time_is_compared_where_both_are_above_nothing() {
    let around = sample::around;
    let near = processor_time(around(6.2, 1.0), around(358.0, 12.0));
    assert_eq!(
        near,
        "On their way to the proof, hidden states take 6.2 µs (95 % interval 5.2 to 7.3) of processor time a \
         token in process (candle), and 358 µs (95 % interval 346 to 371) over HTTP (sglang): in process it is 57.7 times less. \
         Folding them into proofs takes 21.0 µs more."
    );
    let none = processor_time(around(-1.5, 2.0), around(358.0, 12.0));
    assert_eq!(
        none,
        "On their way to the proof, hidden states change the processor time of a token by -1.5 µs (95 % \
         interval -3.5 to 0.7) in process (candle), and 358 µs (95 % interval 346 to 371) over HTTP (sglang). Folding them \
         into proofs takes 21.0 µs more."
    );
    let doubtful = processor_time(around(2.0, 3.0), around(400.0, 12.0));
    assert!(doubtful.contains("in process it is 200 times less, though not beyond chance. Folding"), "{doubtful}");
    assert!(processor_time(alone(30.0), alone(10.0)).contains(": in process it is 3.0 times more. Folding"));
    assert!(processor_time(alone(10.0), alone(10.1)).contains(": in process it is about as much. Folding"));
    assert!(processor_time(alone(0.0), alone(10.0)).contains("over HTTP (sglang). Folding"));
    let known = processor_time(alone(f64::NAN), alone(10.0));
    assert!(
        known.contains("hidden states take 10.0 µs of processor time a token over HTTP (sglang). Folding"),
        "{known}"
    );
    assert!(processor_time(alone(f64::NAN), alone(f64::NAN)).starts_with("Hidden states cross HTTP"));
}

#[test]
fn what_was_not_measured_is_not_answered() {
    let nothing = texts(Vec::new(), &[], None);
    assert_eq!(nothing[0], "What proofs cost is not known: no turn was measured.");
    assert_eq!(nothing[1], "Whether proofs hold across backends was not measured: there is no matrix.");
    let off = texts(Vec::new(), &[sample::cell("sglang", Proofs::Off, (1, 64))], None);
    assert_eq!(off[0], "Over HTTP (sglang), what proofs cost is not known: no turn with proofs was measured.");
    assert_eq!(off.len(), 2, "nothing of bytes or processor time: {off:?}");
    let unpaired = Cell { overhead: None, ..sample::cell("candle", Proofs::Host, (1, 64)) };
    let unpaired = texts(Vec::new(), &[unpaired], None);
    assert!(unpaired[0].ends_with("no turns with proofs were paired with turns without."), "{unpaired:?}");
    let broken = of_candle(alone(f64::NAN), &[alone(f64::NAN)]);
    assert!(broken.ends_with("is not known: no time after first tokens was measured."), "{broken}");
    let each = of_candle(alone(f64::NAN), &[alone(0.3), alone(0.4)]);
    assert!(
        each.contains("what proofs cost over all loads is not known; the worst of 2 loads has 0.4 %, with"),
        "{each}"
    );
}

#[test]
fn a_serve_that_runs_elsewhere() {
    let mut cell = sample::cell("sglang", Proofs::Host, (1, 64));
    cell.other_cpu_us_per_token.serve = None;
    let said = texts(sample::run().overhead, &[cell.clone()], None);
    assert_eq!(
        said[1],
        "On their way to the proof, hidden states take 1,460 µs (95 % interval 1,430 to 1,493) of processor \
         time a token over HTTP (sglang); what it costs the serve is not known, and not in it. Folding them into proofs takes \
         21.0 µs more."
    );
    let both = texts(sample::run().overhead, &[cell, sample::cell("candle", Proofs::Host, (1, 64))], None);
    assert!(both[2].contains(": in process it is at least 63.5 times less; what it costs the serve"), "{both:?}");
}

#[test]
fn an_accepted_control_comes_first_and_loud() {
    let mut matrix = sample::matrix();
    let cell = matrix.cells.iter_mut().find(|cell| cell.role == Role::Control && cell.verifier == "sglang").unwrap();
    cell.passed = 3;
    let said = said(&sample::run(), &sample::cells(), Some(&matrix));
    let alarms: Vec<&str> = said.iter().filter(|said| said.alarm).map(|said| said.text.as_str()).collect();
    assert_eq!(
        alarms,
        [
            "CONTROL ACCEPTED: 3 of 16 answers of “candle q4_0 weights” under “sglang” passed. Such proofs do not tell other \
          weights from the checkpoint's."
        ]
    );
    assert!(said[0].alarm, "before what proofs cost");
    assert!(said[said.len() - 2].text.contains("7 of 8 pairs with a control are rejected"));
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
    let said = said(&sample::run(), &[], Some(&matrix));
    assert!(said[0].alarm);
    assert_eq!(
        said[0].text,
        "HONEST ANSWERS REJECTED: 5 of 16 answers of “sglang” under “candle kv=bf16” failed, the worst of 3 such pairs. An \
         honest miner would be refused."
    );
    assert!(said[said.len() - 2].text.contains("13 of 16 honest pairs"));
}

#[test]
fn a_matrix_that_shows_little_says_so() {
    let honest = sample::matrix_of(&["candle", "sglang"], &[], &[]);
    let said = texts(Vec::new(), &[], Some(&honest));
    assert!(
        said[1].contains("no control was among the makers, so nothing shows that other weights are rejected"),
        "{said:?}"
    );
    let mut empty = sample::matrix_of(&["candle"], &["int4"], &["q4"]);
    for cell in &mut empty.cells {
        (cell.answers, cell.passed) = (0, 0);
    }
    let said = texts(Vec::new(), &[], Some(&empty));
    assert!(!said.iter().any(|said| said.contains("all 1")), "{said:?}");
    assert_eq!(said[2], "3 pairs of maker and verifier had no answer to judge.");
}

#[test]
fn no_verdict_on_an_edge_is_wrong() {
    let of = |edges: &[&str]| {
        let matrix = sample::matrix_of(&["candle", "sglang"], edges, &["q4"]);
        let said = said(&sample::run(), &[], Some(&matrix));
        assert!(said.iter().all(|statement| !statement.alarm), "{said:?}");
        said.last().unwrap().text.clone()
    };
    assert!(of(&[]).starts_with("Cross-verification"));
    assert_eq!(of(&["a"]), "At the edge (weights a little off), the policy accepts “a”.");
    assert_eq!(
        of(&["a", "b"]),
        "Of 2 makers at the edge (weights a little off), the policy accepts “a” and rejects “b”."
    );
    assert_eq!(
        of(&["a", "b", "c", "d", "e", "f", "g"]),
        "Of 7 makers at the edge (weights a little off), the policy accepts “a”, “d” and “g”, rejects “b” and “e”, and is split \
         on “c” (16 of 32 judgements accept) and “f” (16 of 32 judgements accept)."
    );
    // One verifier that accepts is enough to split them.
    let mut matrix = sample::matrix_of(&["candle", "sglang"], &["a", "b"], &[]);
    matrix.cells.retain(|cell| cell.role == Role::Edge && cell.maker == "b");
    matrix.cells[0].passed = 16;
    let said = texts(Vec::new(), &[], Some(&matrix));
    assert_eq!(
        said.last().unwrap(),
        "At the edge (weights a little off), the policy is split on “b” (16 of 32 judgements accept)."
    );
}
