// The strength of auxiliary losses depends neither on the layout, nor on how tokens are split into microbatches, nor on
// the other losses.
#include <cmath>

#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

struct Type {
  const char* name;
  std::vector<std::string> sets;
  bool any_split;     // does not depend on microbatches and replicas
  bool any_pipeline;  // defined layer by layer, microbatch by microbatch
};

const std::vector<Type>& types() {
  static const std::vector<Type> list = {
      {"microbatch", {"moe.load_balancing=[\"aux\"]", "moe.aux_coef=[0.3]"}, false, true},
      {"sequence", {"moe.load_balancing=[\"seq_aux\"]", "moe.aux_coef=[0.3]"}, true, true},
      {"global",
       {"moe.load_balancing=[\"global_aux\"]", "moe.aux_coef=[0.3]", "moe.global_aux_form=\"exact\"",
        "train.order=\"gpipe\""},
       true,
       false},
      {"z", {"moe.load_balancing=[\"none\"]", "moe.z_coef=0.01"}, true, true},
      {"hf",
       {"moe.load_balancing=[\"aux\"]", "moe.aux_coef=[0.3]", "moe.aux_convention=\"hf\""},
       false,
       false},
  };
  return list;
}

config::Config model_of(const Type& type, std::vector<std::string> more) {
  more.insert(more.end(), type.sets.begin(), type.sets.end());
  return small_model(more);
}

TEST(AuxScale, AuxGradientDoesNotDependOnTheLayout) {
  int layouts = 0;
  for (const Type& type : types()) {
    SCOPED_TRACE(type.name);
    const config::Config c = model_of(type, {"train.num_microbatches=2"});
    RunOptions options;
    options.num_steps = 1;
    options.batches = {without_loss(packed_batch(c, {{{5, 8}, {1, 2}}, {{1, 3, 7}, {3, 4, 5}}}))};
    const LayoutRun reference = run_on(c, {}, options);
    for (const int l : {0, 1})
      ASSERT_GT(length_of(reference.steps[0].gradients.at(fmt::format("layers.{}.router.weight", l))), 1e-6);
    for (const int tp : {1, 2, 4})
      for (const int cp : {1, 2})
        for (const int ep : {1, 2})
          for (const int pp : {1, 2}) {
            const int dp = tp * cp % ep == 0 ? 1 : ep;
            if (tp * cp * dp * pp > 8 || (pp > 1 && !type.any_pipeline)) continue;
            const model::Mesh mesh = mesh_of({tp, cp, dp, pp, ep, 1});
            SCOPED_TRACE(text_of(mesh));
            EXPECT_EQ(difference(c, reference, run_on(c, mesh, options)), "");
            ++layouts;
          }
  }
  EXPECT_EQ(layouts, 90);
}

TEST(AuxScale, AuxGradientDoesNotDependOnTheSplit) {
  // Four rows, together or apart.
  const std::vector<Packing> rows = {{{5, 8}, {1, 2}}, {{1, 3, 7}, {3, 4, 5}}, {{16}, {6}}, {{4, 4}, {7, 8}}};
  for (const Type& type : types()) {
    if (!type.any_split) continue;
    SCOPED_TRACE(type.name);
    LayoutRun reference;
    for (const int microbatches : {1, 2, 4})
      for (const int dp : {1, 2}) {
        if (microbatches % dp != 0) continue;
        SCOPED_TRACE(fmt::format("{} microbatches on {} replicas", microbatches, dp));
        const int together = 4 / microbatches;
        const config::Config c = model_of(type, {fmt::format("train.num_microbatches={}", microbatches),
                                                 fmt::format("train.micro_batch={}", together)});
        const Batch one_by_one = without_loss(packed_batch(c, rows));
        Batch batch = one_by_one;
        batch.microbatches.assign(size_t(microbatches), {});
        for (int i = 0; i < 4; ++i) {
          const runtime::Microbatch& from = one_by_one.microbatches[size_t(i)];
          runtime::Microbatch& to = batch.microbatches[size_t(i / together)];
          const auto append = [](auto& a, const auto& b) { a.insert(a.end(), b.begin(), b.end()); };
          const int32_t begin = static_cast<int32_t>(to.tokens.size());
          append(to.tokens, from.tokens), append(to.labels, from.labels);
          append(to.positions, from.positions), append(to.valid, from.valid);
          append(to.loss_mask, from.loss_mask), append(to.token_index, from.token_index);
          for (const int32_t start : from.doc_start) to.doc_start.push_back(begin + start);
        }
        RunOptions options;
        options.num_steps = 1;
        options.batches = {batch};
        const LayoutRun run = run_on(c, mesh_of({1, 1, dp, 1, 1, 1}), options);
        if (reference.steps.empty()) reference = run;
        for (const auto& [name, gradient] : reference.steps[0].gradients)
          if (name.find("router") != std::string::npos) {
            ASSERT_GT(length_of(gradient), 1e-6);
            Tensor gap = run.steps[0].gradients.at(name);
            for (size_t i = 0; i < gap.size(); ++i) gap[i] -= gradient[i];
            EXPECT_LT(length_of(gap) / length_of(gradient), 1e-10) << name;
          }
      }
  }
}

TEST(AuxScale, GlobalTypeIsTheSameForEvenAndUnevenMicrobatches) {
  const Type& global = types()[2];
  const config::Config c = model_of(global, {"train.num_microbatches=3", "train.seq_len=8"});
  // Twelve documents of one token: what a token is does not depend on its neighbours.
  const auto gradients = [&](const std::vector<int>& valid, const model::Mesh& mesh) {
    std::vector<Packing> packings;
    int next = 1;
    for (const int n : valid) {
      Packing& p = packings.emplace_back();
      for (int i = 0; i < n; ++i) p.lengths.push_back(1), p.seeds.push_back(next++);
    }
    RunOptions options;
    options.num_steps = 1;
    options.batches = {without_loss(packed_batch(c, packings))};
    return run_on(c, mesh, options).steps[0];
  };
  const StepResults even = gradients({4, 4, 4}, {});
  for (const model::Mesh& mesh : {model::Mesh{}, mesh_of({2, 2, 1, 1, 2, 1}), mesh_of({1, 1, 3, 1, 1, 1})})
    for (const std::vector<int>& valid : {std::vector{4, 4, 4}, std::vector{6, 2, 4}}) {
      const StepResults uneven = gradients(valid, mesh);
      for (const int l : {0, 1}) {
        EXPECT_NEAR(uneven.layers.at(l).losses[2], even.layers.at(l).losses[2], 1e-9);
        const std::string name = fmt::format("layers.{}.router.weight", l);
        for (size_t i = 0; i < even.gradients.at(name).size(); ++i)
          ASSERT_NEAR(uneven.gradients.at(name)[i], even.gradients.at(name)[i], 1e-9);
      }
    }
}

TEST(AuxScale, CoefficientZeroGivesNoGradientAndOthersGiveSome) {
  for (const char* type : {"aux", "seq_aux"})
    for (const model::Mesh& mesh : {model::Mesh{}, mesh_of({2, 2, 1, 1, 2, 1}), mesh_of({1, 1, 2, 2, 2, 1})})
      for (const double coefficient : {0.0, 1e-3}) {
        SCOPED_TRACE(text_of(mesh) + type);
        const config::Config c =
            small_model({fmt::format("moe.load_balancing=[\"{}\"]", type),
                         fmt::format("moe.aux_coef=[{}]", coefficient), "train.num_microbatches=2"});
        RunOptions options;
        options.num_steps = 1;
        options.batches = {without_loss(packed_batch(c, {{{5, 8}, {1, 2}}, {{1, 3, 7}, {3, 4, 5}}}))};
        const StepResults step = run_on(c, mesh, options).steps[0];
        for (const int l : {0, 1}) {
          const double length = length_of(step.gradients.at(fmt::format("layers.{}.router.weight", l)));
          if (coefficient == 0) {
            EXPECT_EQ(length, 0);
          } else {
            EXPECT_GT(length, 1e-9);
          }
        }
      }
}

// The four rows of logits of users.md through a whole model: tokens are unit vectors, attention adds nothing,
// and the norm before the router multiplies by the root of the width, 8.
const double kLogits[4][4] = {{2, 1, 0, -1}, {1.5, 0.5, -0.5, 0}, {0, 2, 1, -2}, {1, 0.9, -1, 0.3}};

double golden_weight(const model::Parameter& p, int64_t i, double initial) {
  if (p.name == "embedding.weight") return i / 64 == i % 64 ? 1e6 : 0;
  if (p.name == "layers.0.attn.out.weight") return 0;
  if (p.name == "layers.0.router.weight") return i % 64 < 4 ? kLogits[i % 64][i / 64] / 8 : 0;
  return initial;
}

config::Config golden_model(int seq_len, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"model.hidden_size=64", "model.num_layers=1", "moe.num_experts=4",
                           "train.num_microbatches=1", fmt::format("train.seq_len={}", seq_len)});
  return small_model(more);
}

// Tokens first, first + 1, ... in documents of these lengths.
RunOptions golden_run(const config::Config& c, int first, const std::vector<int>& lengths) {
  Packing packing{lengths, std::vector<int>(lengths.size(), 1)};
  Batch batch = without_loss(packed_batch(c, {packing}));
  for (size_t t = 0; t < batch.microbatches[0].tokens.size(); ++t)
    batch.microbatches[0].tokens[t] = first + static_cast<int32_t>(t);
  RunOptions options;
  options.num_steps = 1;
  options.batches = {batch};
  options.weight = golden_weight;
  options.taps = {"d_router_logits"};
  return options;
}

const std::vector<Axes> kGoldenLayouts = {{}, {2}, {1, 2}, {2, 2}, {4}, {2, 2, 1, 1, 2, 2}};

TEST(AuxScale, GoldenValues) {
  for (const Axes& axes : kGoldenLayouts) {
    const model::Mesh mesh = mesh_of(axes);
    SCOPED_TRACE(text_of(mesh));
    const auto losses = [&](const std::vector<std::string>& sets, double* gradient = nullptr) {
      const config::Config c = golden_model(4, sets);
      const StepResults step = run_on(c, mesh, golden_run(c, 0, {4})).steps[0];
      if (gradient) *gradient = length_of(step.taps.at("mb0.L0.d_router_logits"));
      return step.layers.at(0).losses;
    };
    double gradient = 0;
    EXPECT_NEAR(losses({"moe.load_balancing=[\"aux\"]", "moe.aux_coef=[1]"}, &gradient)[0], 1.4294069721,
                1e-10);
    EXPECT_NEAR(gradient, 0.1513995485, 1e-10);
    EXPECT_NEAR(losses({"moe.load_balancing=[\"aux\"]", "moe.aux_coef=[1]", "moe.aux_convention=\"hf\""})[0],
                2.8588139443, 1e-10);
    EXPECT_NEAR(losses({"moe.load_balancing=[\"none\"]", "moe.z_coef=1"})[3], 4.9310051856, 1e-9);
  }
}

TEST(PackedAux, SequenceLossOfThePackIsTheMeanOverDocuments) {
  const std::vector<std::string> sets = {"moe.load_balancing=[\"seq_aux\"]", "moe.aux_coef=[1]"};
  const auto alone = [&](int first) {
    const config::Config c = golden_model(2, sets);
    return run_on(c, {}, golden_run(c, first, {2})).steps[0].layers.at(0).losses[1];
  };
  EXPECT_NEAR(alone(0), 1.6731529122, 1e-10);
  EXPECT_NEAR(alone(2), 1.4030649860, 1e-10);
  for (const Axes& axes : kGoldenLayouts)
    for (const auto context : {model::ContextKind::AllGather, model::ContextKind::Ring}) {
      model::Mesh mesh = mesh_of(axes);
      if (mesh.cp == 1 && context == model::ContextKind::Ring) continue;
      mesh.context = context;
      SCOPED_TRACE(text_of(mesh));
      const config::Config c = golden_model(4, sets);
      const double pack = run_on(c, mesh, golden_run(c, 0, {2, 2})).steps[0].layers.at(0).losses[1];
      EXPECT_NEAR(pack, 1.5381089491, 1e-10);
      EXPECT_NEAR(pack, (alone(0) + alone(2)) / 2, 1e-14);
    }
}

}  // namespace
}  // namespace pleat::verify
