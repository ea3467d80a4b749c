//! Qwen3.5/3.6: linear layers, gated attention, experts, weights in bf16 and block-FP8.

use super::*;
use crate::backend::candle::cache::state::LayerState;
use crate::backend::candle::model::decoder::LayerMemory;

pub(super) const F32: &str = "tiny-qwen3_5_moe-f32";
pub(super) const BF16: &str = "tiny-qwen3_5_moe-bf16";
pub(super) const FP8: &str = "tiny-qwen3_5_moe-fp8";

pub(super) fn open(model: &str) -> Checkpoint {
    Checkpoint::open(&fixture(model)).unwrap()
}

#[test]
fn qwen3_5_moe_agrees_with_its_goldens_in_every_form_of_weights() {
    for model in [F32, BF16, FP8] {
        for chunk in [512, 7, 1] {
            check(&open(model), &Golden::load(model, "f32"), chunk);
        }
    }
}

/// A prompt of 1,500 tokens: the ids are the reference's and the rows are the same bits, however it is cut.
#[test]
fn a_long_prompt_is_the_same_however_it_is_cut() {
    let golden = Golden::load(F32, "f32_long");
    let (prompt, chosen) = &golden.prompts[0];
    let mut whole: Option<Vec<Vec<f32>>> = None;
    for chunk in [2048, 512, 100, 64, 7, 1] {
        let mut machine = Machine::open(&open(F32), chunk);
        machine.scheduler.submit(0, prompt.clone(), prompt.len() + chosen.len(), Wanted::Next).unwrap();
        let (rows, ids) = machine.run(chosen.len()).remove(&0).unwrap();
        assert_eq!(&ids, chosen, "chunk {chunk}");
        assert_close(&rows, &golden.rows(0, "step_fin"), &format!("step_fin, chunk {chunk}"));
        assert_eq!(whole.get_or_insert_with(|| rows.clone()), &rows, "chunk {chunk}");
    }
}

/// A layer's recurrent state as the goldens have it: `[value heads, key dim, value dim]`.
fn matrices(state: &LayerState, slot: usize, value_dim: usize) -> Tensor {
    let (heads, vectors, key_dim, lanes) = state.matrices.get(slot).unwrap().dims4().unwrap();
    let columns = state.matrices.get(slot).unwrap().transpose(1, 2).unwrap().contiguous().unwrap();
    columns.reshape((heads, key_dim, vectors * lanes)).unwrap().narrow(2, 0, value_dim).unwrap()
}

fn worst(got: &Tensor, want: &Tensor) -> f32 {
    (got - want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap()
}

/// Inside the model: what each layer gives, and what the linear ones remember.
#[test]
fn layers_and_states_agree_with_the_goldens() {
    for model in [F32, BF16, FP8] {
        let golden = Golden::load(model, "f32");
        let (prompt, _) = &golden.prompts[2];
        let mut machine = Machine::open(&open(model), 512);
        machine.scheduler.submit(0, prompt.clone(), prompt.len(), Wanted::Next).unwrap();
        let (plan, _) = machine.scheduler.plan().unwrap();
        let outputs = machine.runner.solo().layer_outputs(&plan).unwrap();
        let slot = plan.spans[0].state as usize;
        for (layer, (output, memory)) in outputs.iter().zip(machine.runner.solo().memories()).enumerate() {
            let off = worst(output, &golden.tensors[&format!("p2.layer_out.{layer}")]);
            assert!(off < TOLERANCE, "{model}: layer {layer} gives values off by {off}");
            let LayerMemory::State(state) = memory else { continue };
            let want = &golden.tensors[&format!("p2.recurrent_state.{layer}")];
            let off = worst(&matrices(state, slot, want.dim(2).unwrap()), want);
            assert!(off < TOLERANCE, "{model}: layer {layer} remembers a matrix off by {off}");
            // The reference keeps four tokens' inputs, of which the last three are the state.
            let want = golden.tensors[&format!("p2.conv_state.{layer}")].narrow(1, 1, 3).unwrap().t().unwrap();
            let off = worst(&state.tails.get(slot).unwrap(), &want);
            assert!(off < TOLERANCE, "{model}: layer {layer} remembers inputs off by {off}");
        }
    }
}

#[test]
fn a_tiny_cache_forces_recompute_of_states_too_and_changes_nothing() {
    let golden = Golden::load(FP8, "f32");
    for prefix_blocks in [usize::MAX, 0] {
        // Room for the longest request alone (71 + 48 tokens) and a little more.
        let blocks = (71 + STEPS).div_ceil(BLOCK_TOKENS) as u32 + 1;
        let settings = Settings { prefill_chunk: 16, blocks, prefix_blocks, ..Settings::default() };
        let mut machine = Machine::with(&open(FP8), settings);
        check_together(&mut machine, &golden);
    }
}
