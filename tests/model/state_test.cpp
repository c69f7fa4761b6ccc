// The optimizer's table of states, and that shares are cut where it allows.
#include "model/state.h"

#include <gtest/gtest.h>

#include "model/mesh_rules.h"
#include "model/parameters.h"
#include "model/shard.h"
#include "program/shares.h"

namespace pleat::model {
namespace {

using tensor::Dtype;

config::Config with(const std::vector<std::string>& sets) {
  return config::resolve(
      config::parse("[model]\nvocab_size = 61\nhidden_size = 32\nnum_heads = 4\nffn_hidden_size = 24\n", sets,
                    "test.toml"));
}

std::vector<Dtype> formats_of(const config::Config& c) {
  std::vector<Dtype> out;
  for (const StateSlot& s : optimizer_of(c).states) out.push_back(s.format);
  return out;
}

TEST(States, FormatsFollowTheKeys) {
  const std::string first = "optimizer.moment1_dtype=bfloat16", second = "optimizer.moment2_dtype=bfloat16";
  using Formats = std::vector<Dtype>;
  EXPECT_EQ(formats_of(with({})), (Formats{Dtype::F32, Dtype::F32}));
  EXPECT_EQ(formats_of(with({first})), (Formats{Dtype::BF16, Dtype::F32}));
  EXPECT_EQ(formats_of(with({second})), (Formats{Dtype::F32, Dtype::BF16}));
  EXPECT_EQ(formats_of(with({"model.dtype=float64"})), (Formats{Dtype::F64, Dtype::F64}));
  const std::vector<std::string> narrow = {"model.dtype=bfloat16", "device.kind=cuda"};
  const auto on_gpu = [&](std::vector<std::string> sets) {
    sets.insert(sets.begin(), narrow.begin(), narrow.end());
    return formats_of(with(sets));
  };
  EXPECT_EQ(on_gpu({}), (Formats{Dtype::F32, Dtype::F32, Dtype::I16}));
  EXPECT_EQ(on_gpu({"optimizer.moment_dtype=bfloat16"}), (Formats{Dtype::BF16, Dtype::BF16, Dtype::I16}));
  EXPECT_EQ(on_gpu({second}), (Formats{Dtype::F32, Dtype::BF16, Dtype::I16}));
  EXPECT_EQ(on_gpu({"optimizer.moment_dtype=bfloat16", "optimizer.moment1_dtype=float32"}),
            (Formats{Dtype::F32, Dtype::BF16, Dtype::I16}));
  const std::string codes1 = "optimizer.moment1_dtype=block8", codes2 = "optimizer.moment2_dtype=block8";
  EXPECT_EQ(formats_of(with({codes1, codes2})), (Formats{Dtype::U8, Dtype::F32, Dtype::U8, Dtype::F32}));
  EXPECT_EQ(formats_of(with({codes2})), (Formats{Dtype::F32, Dtype::U8, Dtype::F32}));
  EXPECT_EQ(on_gpu({"optimizer.moment_dtype=block8", "optimizer.master=float24"}),
            (Formats{Dtype::U8, Dtype::F32, Dtype::U8, Dtype::F32, Dtype::U8}));
  EXPECT_EQ(on_gpu({"optimizer.master=bfloat16"}), (Formats{Dtype::F32, Dtype::F32}));
  // A copy of the model in another type, as verify-layout makes one, keeps the keys and not their formats.
  config::Config c = with({first, second});
  c.model.dtype = "float64";
  EXPECT_EQ(formats_of(c), (Formats{Dtype::F64, Dtype::F64}));
}

// The update takes the weight and behind it every state, in the order of the rows.
TEST(States, RowsAreTheArgumentsOfTheUpdate) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{},
        {"model.dtype=bfloat16", "device.kind=cuda"},
        {"model.dtype=bfloat16", "device.kind=cuda", "optimizer.moment_dtype=block8",
         "optimizer.master=float24"}}) {
    const Optimizer optimizer = optimizer_of(with(sets));
    const std::vector<program::Argument>& arguments =
        program::arguments_of(optimizer.update, program::Phase::Update);
    size_t weight = 0;
    while (arguments[weight].name != "w") ++weight;
    const bool takes = arguments.back().repeated
                           ? program::takes(arguments, weight + 1 + optimizer.states.size())
                           : arguments.size() - weight - 1 == optimizer.states.size();
    EXPECT_TRUE(takes) << name_of(optimizer.update);
    for (size_t i = weight; i < arguments.size(); ++i)
      EXPECT_TRUE(arguments[i].in_place) << arguments[i].name;
  }
}

// Bytes of a parameter: its codes, and a scale for every block that begins. Vectors keep wide moments.
TEST(States, CodesTakeOneByteAndAScale) {
  const config::Config c = with({"optimizer.moment1_dtype=block8", "optimizer.moment2_dtype=block8"});
  for (const Parameter& p : make_parameters(c)) {
    const int64_t n = num_elements(p);
    int64_t bytes = 0;
    for (const StateSlot& s : optimizer_of(c, p).states) {
      int64_t size = tensor::size_of(s.format);
      for (const int64_t extent : state_shape(s, p.shape)) size *= extent;
      bytes += size;
      EXPECT_EQ(s.unit, p.unit);
    }
    const bool matrix = p.shape.size() > 1;
    EXPECT_EQ(bytes, matrix ? 2 * (n + (n + 255) / 256 * 4) : 8 * n) << p.name;
    EXPECT_EQ(p.unit, matrix ? 256 : 1) << p.name;
    EXPECT_EQ(optimizer_of(c, p).update, matrix ? program::Op::adamw_coded : program::Op::adamw) << p.name;
  }
}

TEST(States, LayoutsThatCutBlocksAreRefusedByName) {
  const std::vector<std::string> codes = {"optimizer.moment1_dtype=block8", "model.hidden_size=256"};
  const auto fault = [&](int64_t tp, const std::string& more) {
    std::vector<std::string> sets = codes;
    sets.push_back(more);
    Mesh mesh;
    mesh.tp = tp;
    const std::vector<LayoutFault> faults = layout_faults(with(sets), mesh);
    return faults.empty() ? std::string() : faults[0].text;
  };
  EXPECT_EQ(fault(1, "model.ffn_hidden_size=24"), "");
  EXPECT_NE(fault(2, "model.ffn_hidden_size=512")
                .find("layers.0.attn.out.weight is cut every 128 elements (parallel.tp = 2)"),
            std::string::npos)
      << fault(2, "model.ffn_hidden_size=512");
  EXPECT_EQ(fault(2, "model.head_dim=128"),
            "layers.0.mlp.down.weight is cut every 12 elements (parallel.tp = 2), but its "
            "moments are kept in blocks of 256: needed a multiple of that, or "
            "optimizer.moment1_dtype and optimizer.moment2_dtype other than \"block8\"");
}

TEST(States, SharesAreWholeUnits) {
  Optimizer optimizer = optimizer_of(with({}));
  EXPECT_EQ(unit_of(optimizer), 1);
  optimizer.states[0].unit = 6, optimizer.states[1].unit = 4;
  EXPECT_EQ(unit_of(optimizer), 12);

  EXPECT_EQ(program::share_of(100, 3), 34);
  EXPECT_EQ(program::share_of(100, 3, 12), 36);
  EXPECT_EQ(program::share_of(12, 3, 12), 12);
  EXPECT_EQ(program::share_of(13, 1, 12), 13) << "the last unit is as long as the tensor";
  Mesh mesh;
  mesh.dp = mesh.edp = 3;
  for (Parameter p : make_parameters(with({}))) {
    p.unit = 48;
    const Ownership own = ownership(p, mesh);
    ASSERT_EQ(own.num_owners, 3);
    EXPECT_TRUE(own.share % 48 == 0 || own.share == own.elements) << p.name;
    int64_t held = 0;
    for (int64_t owner = 0; owner < 3; ++owner)
      for (const model::Run& r : share_runs(local_runs(p, mesh, {}), own, owner)) {
        EXPECT_EQ(r.logical_begin % 48, 0) << p.name;
        held += r.count;
      }
    EXPECT_EQ(held, num_elements(p)) << p.name;
  }
}

}  // namespace
}  // namespace pleat::model
