// Every parameter gradient of whole models against central differences in double, with the routing of the
// first forward replayed so that no decision flips under the probe.
#include <gtest/gtest.h>

#include <cmath>

#include "model/decoder.h"
#include "schedule/build.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

// The objective the gradients belong to: mean token loss plus every weighted auxiliary loss.
double objective(const config::Config& c, interpret::Executor& e) {
  const double* loss = static_cast<const double*>(e.data("loss"));
  const double* norm = static_cast<const double*>(e.data("norm"));
  double total = loss[0] * norm[0];
  for (int64_t k = 0; k < c.model.num_mtp_layers; ++k) {
    const double* mtp =
        static_cast<const double*>(e.data(fmt::format("L{}.mtp_loss", c.model.num_layers + k)));
    total += c.train.mtp_loss_factor / static_cast<double>(c.model.num_mtp_layers) * mtp[0] / mtp[1];
  }
  const model::AuxCoefficients aux = model::aux_coefficients(c);
  for (int layer = 0; layer < config::num_all_layers(c) && aux.any(); ++layer) {
    if (!config::is_moe_layer(c, layer)) continue;
    const double* l = static_cast<const double*>(e.data(fmt::format("L{}.aux_losses", layer)));
    total += aux.micro * l[0] + aux.sequence * l[1] + aux.global * l[2] + aux.z * l[3];
  }
  return total;
}

void expect_gradients_right(const config::Config& c, int64_t max_probes = 24, double step = 1e-5) {
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  runtime::Programs programs(c, choice);
  programs.initialize();
  const auto table = model::make_parameters(c);

  // One thread: thousands of tiny steps would only wait for each other's threads.
  Runtime record(
      runtime::without_update(schedule::build_training_step(c, table, {model::RoutingUse::Record})), 1);
  Runtime replay(runtime::without_update(with_gradients_kept(
                     schedule::build_training_step(c, table, {model::RoutingUse::Replay}))),
                 1);
  copy_state(programs, record);
  copy_state(programs, replay);
  write_random_batch(record.executor(), c, 1);
  record.executor().run();
  const auto write_inputs = [&] {
    write_random_batch(replay.executor(), c, 1);
    for (const program::Value& v : record.program().values)
      if (v.name.ends_with(".routing"))
        std::memcpy(replay.executor().data(v.name), record.executor().data(v.name),
                    static_cast<size_t>(program::num_bytes(v)));
  };
  const auto value = [&] {
    write_inputs();
    replay.executor().run();
    return objective(c, replay.executor());
  };
  value();
  const Snapshot analytic = gradients(replay.program(), replay.executor());

  for (const model::Parameter& p : table) {
    if (!p.tied_to.empty()) continue;
    double* weight = static_cast<double*>(replay.executor().data(p.name));
    const double* grad = reinterpret_cast<const double*>(analytic.at(p.name + ".grad").data());
    const int64_t n = model::num_elements(p);
    // Big tensors are probed at a fixed sample of elements; every tensor is probed.
    const int64_t stride = std::max<int64_t>(1, n / max_probes) | 1;
    double difference = 0, scale = 0;
    for (int64_t i = 0; i < n; i += stride) {
      const double keep = weight[i];
      weight[i] = keep + step;
      const double up = value();
      weight[i] = keep - step;
      const double down = value();
      weight[i] = keep;
      const double numeric = (up - down) / (2 * step);
      difference += (numeric - grad[i]) * (numeric - grad[i]);
      scale += numeric * numeric;
    }
    const double error = std::sqrt(scale) < 1e-8 ? std::sqrt(difference) : std::sqrt(difference / scale);
    EXPECT_LE(error, 1e-6) << p.name << " gradient norm " << std::sqrt(scale);
  }
}

}  // namespace

// An init_std well above the training default makes every path of the model matter.

TEST(WholeModelGradient, EveryElementOfATwoLayerModel) {
  expect_gradients_right(
      small_config("", {"model.init_std=0.3", "moe.z_coef=0.01", "moe.shared_ffn_hidden_size=6"}), 1 << 20);
}

TEST(WholeModelGradient, EveryAttentionAndMlpOption) {
  expect_gradients_right(small_config(
      "",
      {"model.init_std=0.3", "model.qk_norm=true", "model.qkv_bias=true", "model.attn_out_bias=true",
       "model.mlp_bias=true", "model.rotary_dim=4", "model.rope_interleaved=true", "model.sliding_window=4",
       "model.leading_dense_layers=1", "model.ffn_hidden_size=10", "moe.router_bias=true"}));
}

TEST(WholeModelGradient, TiedHeadSharedExpertsWithGate) {
  expect_gradients_right(small_config("", {"model.init_std=0.3", "model.tie_embeddings=true",
                                           "moe.shared_ffn_hidden_size=7", "moe.shared_gate=true"}));
}

TEST(WholeModelGradient, SigmoidGroupsScaleSequenceAndGlobalAux) {
  expect_gradients_right(small_config(
      "", {"model.init_std=0.3", "moe.num_experts=6", "moe.score=\"sigmoid\"", "moe.num_groups=3",
           "moe.group_topk=2", "moe.scaling_factor=2.5",
           "moe.load_balancing=[\"seq_aux\",\"global_aux\",\"bias\"]", "moe.aux_coef=[0.1,0.2]"}));
}

TEST(WholeModelGradient, ExactGlobalAuxWithAllForwardsFirst) {
  expect_gradients_right(
      small_config("", {"model.init_std=0.3", "moe.load_balancing=[\"global_aux\"]", "moe.aux_coef=[0.3]",
                        "moe.global_aux_form=\"exact\"", "train.order=\"gpipe\""}));
}

TEST(WholeModelGradient, HuggingFaceAuxOverLayers) {
  expect_gradients_right(
      small_config("", {"model.init_std=0.3", "moe.aux_convention=\"hf\"", "moe.aux_coef=[0.2]"}));
}

TEST(WholeModelGradient, JitterPreSoftmaxAndCapacityDrop) {
  expect_gradients_right(
      small_config("", {"model.init_std=0.3", "moe.input_jitter=0.1", "moe.pre_softmax=true",
                        "moe.renormalize=false", "moe.capacity_factor=0.8", "moe.drop_policy=\"position\""}));
}

TEST(WholeModelGradient, SqrtSoftplusPadToCapacity) {
  expect_gradients_right(
      small_config("", {"model.init_std=0.3", "moe.score=\"sqrtsoftplus\"", "moe.capacity_factor=1.5",
                        "moe.pad_to_capacity=true", "moe.drop_policy=\"position\""}));
}

// Multi-token prediction. A factor well above the default makes its paths matter as much as the main one.

TEST(WholeModelGradient, OneDepthBehindExperts) {
  expect_gradients_right(small_config("", {"model.init_std=0.3", "model.num_mtp_layers=1",
                                           "train.mtp_loss_factor=0.7", "moe.shared_ffn_hidden_size=6"}));
}

TEST(WholeModelGradient, TwoDepthsBehindADenseLayerTiedHead) {
  expect_gradients_right(small_config(
      "", {"model.init_std=0.3", "model.num_mtp_layers=2", "train.mtp_loss_factor=0.7",
           "model.moe_layer_freq=[1,0]", "model.ffn_hidden_size=10", "model.tie_embeddings=true"}));
}

TEST(WholeModelGradient, TwoDepthsOfLatentAttentionAndExperts) {
  expect_gradients_right(small_config(
      "",
      {"model.init_std=0.3", "model.num_mtp_layers=2", "train.mtp_loss_factor=0.7", "model.attention=\"mla\"",
       "model.num_kv_heads=0", "model.head_dim=0", "model.q_lora_rank=5", "model.kv_lora_rank=6",
       "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=2", "model.v_head_dim=3", "moe.score=\"sigmoid\"",
       "moe.load_balancing=[\"seq_aux\",\"bias\"]", "moe.aux_coef=[0.1]"}));
}

TEST(WholeModelGradient, OneDepthOfLatentAttentionBehindADenseLayer) {
  expect_gradients_right(
      small_config("", {"model.init_std=0.3", "model.num_mtp_layers=1", "train.mtp_loss_factor=0.7",
                        "model.attention=\"mla\"", "model.num_kv_heads=0", "model.head_dim=0",
                        "model.kv_lora_rank=6", "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=2",
                        "model.v_head_dim=3", "model.moe_layer_freq=[1,0]", "model.ffn_hidden_size=10"}));
}

TEST(WholeModelGradient, TwoDepthsHuggingFaceAuxAllForwardsFirst) {
  expect_gradients_right(
      small_config("", {"model.init_std=0.3", "model.num_mtp_layers=2", "moe.aux_convention=\"hf\"",
                        "moe.aux_coef=[0.2]", "train.order=\"gpipe\""}));
}

}  // namespace pleat::train::testing
