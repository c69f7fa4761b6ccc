// Keys of [train], [checkpoint], [log], [precision], [recompute] and [device]; where those of other files stand.
#include "config/schema.h"

namespace pleat::config {

namespace {

// Lanes beside the one that computes: of shared experts, of copies to the host, of what several ranks exchange for their
// gradients and weights.
Condition a_step_has_lanes() {
  Condition out = on_ranks(RankCount::Several);
  out.text =
      "device.kind is \"cuda\", moe.shared_ffn_hidden_size > 0, offload.modules is not empty or the run has "
      "several "
      "ranks";
  out.decided_by = {"device.kind", "moe.shared_ffn_hidden_size", "offload.modules"};
  out.anyway = [](const Config& c) {
    return c.device.kind == "cuda" || c.moe.shared_ffn_hidden_size > 0 || !c.offload.modules.empty();
  };
  return out;
}

// On several ranks the step is a graph where no exchange needs a count on the host first.
Condition a_step_can_be_a_graph() {
  Condition out = on_ranks(RankCount::One);
  out.text =
      "the run has one rank, or several that do not exchange experts' rows by parallel.exchange \"counted\"";
  out.decided_by = {"parallel.exchange", "parallel.dispatcher", "parallel.ep", "parallel.etp"};
  out.anyway = [](const Config& c) {
    return c.parallel.ep * c.parallel.etp == 1 || c.parallel.dispatcher == "allgather" ||
           c.parallel.exchange != "counted";
  };
  return out;
}

void add_train_keys(std::vector<Key>& keys) {
  using T = TrainConfig;
  const auto key = [](const char* name, auto T::*field, std::string meaning) {
    return make_key(std::string("train.") + name, &Config::train, field, std::move(meaning));
  };
  keys.push_back(
      key("steps", &T::steps, "Optimizer steps of the run.").range(1, 1e12).on_resume(OnResume::MayGrow));
  keys.push_back(key("micro_batch", &T::micro_batch, "Sequences in one microbatch.").range(1, 1 << 20));
  keys.push_back(key("num_microbatches", &T::num_microbatches,
                     "Microbatches whose gradients are summed before each optimizer step.")
                     .range(1, 1 << 20)
                     .see({"train.order"}));
  keys.push_back(
      key("seq_len", &T::seq_len, "Tokens in one sequence.").range(1, 1 << 24).on_resume(OnResume::Never));
  keys.push_back(
      key("seed", &T::seed, "Seed of everything random: weights, data order, jitter, forced routing.")
          .range(0, 9.2e18)
          .on_resume(OnResume::Never));
  keys.push_back(
      key("order", &T::order,
          "Order of microbatches. 1f1b: the backward of each follows its forward. gpipe: all forwards "
          "before the backwards, which keeps every microbatch's activations. loop: the order and the bits of "
          "1f1b, but the program holds three microbatches of a rank, the first, one that is repeated, and "
          "the last: a step of very many takes no longer to plan, and no more memory. Lanes meet between "
          "microbatches.")
          .one_of({"1f1b", "gpipe", "loop"})
          .see({"train.num_microbatches", "moe.global_aux_form"}));
  keys.push_back(
      key("eval_every", &T::eval_every,
          "Steps between evaluations on the validation data; the last step is evaluated too. 0 evaluates "
          "after the last step only.")
          .range(0, 1e12)
          .when(has_validation_data())
          .see({"train.eval_batches", "data.valid"}));
  keys.push_back(
      key("eval_batches", &T::eval_batches,
          "Microbatches in one evaluation: the first of the validation data, the same each time, so "
          "that the losses can be compared (with another value they no longer can). They are `eval` on the "
          "console and in metrics.jsonl, and "
          "the best checkpoint is chosen by them. At the end all of the validation data is run once "
          "more and printed as \"validation, all of it\" (validation_loss in summary.json).")
          .range(1, 1e9)
          .when(has_validation_data())
          .see({"train.eval_every"}));
  keys.push_back(
      key("loss_chunk", &T::loss_chunk,
          "Tokens whose logits are in memory at once. 0 chooses about 16 MiB of logits, on a GPU at least "
          "4096 tokens. Part of the order of sums: another value gives other last bits.")
          .range(0, 1 << 30)
          .see({"model.vocab_size"}));
  keys.push_back(
      key("max_refused_steps", &T::max_refused_steps,
          "A step with a non-finite loss or gradient changes nothing; this many in a row stop the run.")
          .range(1, 1e6));
  keys.push_back(key("mtp_loss_factor", &T::mtp_loss_factor,
                     "The mean of the losses of all model.num_mtp_layers depths is added to the loss times "
                     "this; each is "
                     "a mean over the tokens that depth predicts in the whole step.")
                     .above(0, 100)
                     .on_resume(OnResume::WithFlag)
                     .when(has_mtp_layers())
                     .see({"model.num_mtp_layers"}));
}

void add_checkpoint_keys(std::vector<Key>& keys) {
  using C = CheckpointConfig;
  const auto key = [](const char* name, auto C::*field, std::string meaning) {
    return make_key(std::string("checkpoint.") + name, &Config::checkpoint, field, std::move(meaning));
  };
  keys.push_back(key("dir", &C::dir, "Folder of the checkpoints. Empty: checkpoints inside log.run_dir.")
                     .names_file()
                     .see({"log.run_dir"}));
  keys.push_back(
      key("every", &C::every,
          "Steps between checkpoints. 0 saves at the end only. Training waits until one is committed: there "
          "is no save in the background.")
          .range(0, 1e12)
          .see({"checkpoint.save_at_end"}));
  keys.push_back(
      key("keep", &C::keep, "Verified checkpoints kept; older ones are removed. Never fewer than 2.")
          .range(2, 1e6));
  keys.push_back(
      key("keep_best", &C::keep_best,
          "Also keep the checkpoint with the least validation loss, whatever its age; --step best uses it. "
          "Checkpoints count that were saved after a step with an evaluation (train.eval_batches).")
          .when(has_validation_data())
          .see({"train.eval_every", "checkpoint.every", "checkpoint.keep"}));
  keys.push_back(key("save_at_end", &C::save_at_end, "Also save after the last step."));
  keys.push_back(key("resume", &C::resume,
                     "auto: go on from the newest verified checkpoint if there is one. never: start anew. "
                     "must: fail when there is none.")
                     .one_of({"auto", "never", "must"}));
}

void add_log_keys(std::vector<Key>& keys) {
  using L = LogConfig;
  const auto key = [](const char* name, auto L::*field, std::string meaning) {
    return make_key(std::string("log.") + name, &Config::log, field, std::move(meaning));
  };
  keys.push_back(key("run_dir", &L::run_dir, "Folder of the run: metrics, summary, event files, report.")
                     .names_file()
                     .see({"checkpoint.dir"}));
  keys.push_back(
      key("console_every", &L::console_every,
          "Steps between progress lines; steps that are evaluated and the last one have a line too. 0 prints "
          "none. Left out: a terminal shows every step, on one line that is rewritten; a pipe or a file gets "
          "a "
          "line every 5 seconds.")
          .range(0, 1e12));
  keys.push_back(key("tensorboard", &L::tensorboard, "Write TensorBoard event files."));
  keys.push_back(key("health_every", &L::health_every,
                     "Steps between full router-health tables in the files. 0 writes none.")
                     .range(0, 1e12)
                     .when(has_experts()));
  keys.push_back(key("timeline_step", &L::timeline_step,
                     "Step whose stages are timed for the report. 0 is the last step.")
                     .range(0, 1e12)
                     .see({"train.steps"}));
  keys.push_back(key("breakdown_every", &L::breakdown_every,
                     "Steps between breakdowns: that step runs stage by stage with a clock on each, and the "
                     "console and metrics.jsonl say how long attention, router, dispatch, experts, combine, "
                     "head, optimizer and the rest took, and how much of the step no stage covers. On a GPU "
                     "it is no graph then and takes longer; bits are the same. 0: never.")
                     .range(0, 1e12)
                     .see({"log.timeline_step"}));
}

void add_precision_keys(std::vector<Key>& keys) {
  using P = PrecisionConfig;
  const auto key = [](const char* name, auto P::*field, std::string meaning) {
    return make_key(std::string("precision.") + name, &Config::precision, field, std::move(meaning));
  };
  const Condition has_recipe{"precision.recipe is not \"none\"", {"precision.recipe"}, [](const Config& c) {
                               return c.precision.recipe != "none";
                             }};
  keys.push_back(
      key("recipe", &P::recipe,
          "Products of the layers in fewer bits than model.dtype: numbers become codes with a scale for each "
          "block. fp8: E4M3, blocks of 128, of 128 x 128 for weights, scales are powers of two. mxfp8: E4M3, "
          "blocks of 32, E8M0 scales. nvfp4: E2M1, blocks of 16, of 16 x 16 for weights, E4M3 scales. "
          "Router, "
          "norms, attention core, embedding, head, loss, gradients and the optimizer stay wide, as do "
          "evaluation and generation. `plan` and `explain` take every recipe, `simulate` on every "
          "machine that has a rate for it; fp8 trains on a GPU, and on a CPU by exact rounding, slowly.")
          .one_of({"none", "fp8", "mxfp8", "nvfp4"})
          .on_resume(OnResume::WithFlag)
          .see({"precision.modules", "model.dtype"}));
  keys.push_back(
      key("modules", &P::modules,
          "Whose products: those of experts, shared_experts, attention (query, key, value and "
          "output), latent (the projections of latent attention but the output), mlp (dense layers). Empty: "
          "of all the model has.")
          .one_of({"experts", "shared_experts", "attention", "latent", "mlp"})
          .on_resume(OnResume::WithFlag)
          .when(has_recipe)
          .see({"precision.recipe"}));
  keys.push_back(key("wide_first", &P::wide_first, "First layers that stay in model.dtype.")
                     .range(0, 1e6)
                     .on_resume(OnResume::WithFlag)
                     .when(has_recipe)
                     .see({"precision.wide_last"}));
  keys.push_back(key("wide_last", &P::wide_last,
                     "Last layers that stay in model.dtype; layers of multi-token prediction come last.")
                     .range(0, 1e6)
                     .on_resume(OnResume::WithFlag)
                     .when(has_recipe)
                     .see({"precision.wide_first"}));
}

void add_recompute_keys(std::vector<Key>& keys) {
  using R = RecomputeConfig;
  const auto key = [](const char* name, auto R::*field, std::string meaning) {
    return make_key(std::string("recompute.") + name, &Config::recompute, field, std::move(meaning));
  };
  keys.push_back(
      key("modules", &R::modules,
          "Parts whose outputs are freed after the forward pass and computed again in the backward pass; "
          "any combination. Results do not change by a bit. Routing decisions are never recomputed.")
          .one_of({"norm", "activation", "core_attention", "experts", "shared_experts", "layer"})
          .see({"recompute.layers"}));
  keys.push_back(
      key("layers", &R::layers, "Layers it applies to: \"all\", or numbers and ranges such as \"0-3,7\".")
          .when({"recompute.modules is not empty",
                 {"recompute.modules"},
                 [](const Config& c) { return !c.recompute.modules.empty(); }})
          .see({"recompute.modules", "model.num_layers"}));
}

void add_device_keys(std::vector<Key>& keys) {
  using D = DeviceConfig;
  const auto key = [](const char* name, auto D::*field, std::string meaning) {
    return make_key(std::string("device.") + name, &Config::device, field, std::move(meaning));
  };
  keys.push_back(
      key("kind", &D::kind,
          "Back end the run executes on. cuda needs a build with it (preset cuda) and a GPU of compute "
          "capability 9.0.")
          .one_of({"cpu", "cuda"}));
  keys.push_back(
      key("graph", &D::graph,
          "Capture the step as one CUDA graph after the first: no launch costs, the same bits. Of several "
          "ranks each has a graph of its own part, exchanges included, where they are processes with a GPU "
          "each; where a host must read counts (parallel.exchange \"counted\"), and on threads that share "
          "a GPU, steps run stage by stage, whatever this says.")
          .when(a_step_can_be_a_graph())
          .when({"device.kind is \"cuda\"", {"device.kind"}, [](const Config& c) {
                   return c.device.kind == "cuda";
                 }}));
  keys.push_back(key("in_order", &D::in_order,
                     "For debugging: run the stages of a step one after the other, as `pleat explain` lists "
                     "them, instead of lanes "
                     "side by side. Slower where lanes overlap; the bits are the same.")
                     .when(a_step_has_lanes())
                     .see({"device.graph"}));
  keys.push_back(
      key("threads", &D::threads,
          "Worker threads. 0 uses every core this process may run on. Results do not depend on it.")
          .range(0, 1024));
  keys.push_back(key("deterministic_attention", &D::deterministic_attention,
                     "The backward of attention gives the same bits every time. Off: a faster form whose "
                     "sums may come in another order from run to run.")
                     .when({"device.kind is \"cuda\"", {"device.kind"}, [](const Config& c) {
                              return c.device.kind == "cuda";
                            }}));
  keys.push_back(
      key("matmul_choices", &D::matmul_choices,
          "The matmul_choices.json of another run: dense products take the algorithms it measured, so that "
          "this run can have the bits of that one. Empty, or a product it does not hold: measured. A "
          "checkpoint, and an earlier start in log.run_dir, come first.")
          .names_file()
          .see({"log.run_dir"})
          .when({"device.kind is \"cuda\"", {"device.kind"}, [](const Config& c) {
                   return c.device.kind == "cuda";
                 }}));
}

}  // namespace

std::vector<Key> run_keys() {
  std::vector<Key> keys;
  add_train_keys(keys);
  for (Key& key : data_keys()) keys.push_back(std::move(key));
  add_checkpoint_keys(keys);
  add_log_keys(keys);
  add_precision_keys(keys);
  add_recompute_keys(keys);
  for (Key& key : offload_keys()) keys.push_back(std::move(key));
  add_device_keys(keys);
  return keys;
}

}  // namespace pleat::config
