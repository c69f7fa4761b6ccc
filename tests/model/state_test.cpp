// The optimizer's table of states, and that shares are cut where it allows.
#include "model/state.h"

#include <gtest/gtest.h>

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
  // A copy of the model in another type, as verify-layout makes one, keeps the keys and not their formats.
  config::Config c = with({first, second});
  c.model.dtype = "float64";
  EXPECT_EQ(formats_of(c), (Formats{Dtype::F64, Dtype::F64}));
}

// The update takes the weight and behind it every state, in the order of the rows.
TEST(States, RowsAreTheArgumentsOfTheUpdate) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{}, {"model.dtype=bfloat16", "device.kind=cuda"}}) {
    const Optimizer optimizer = optimizer_of(with(sets));
    const std::vector<program::Argument>& arguments =
        program::arguments_of(optimizer.update, program::Phase::Update);
    size_t weight = 0;
    while (arguments[weight].name != "w") ++weight;
    EXPECT_EQ(arguments.size() - weight - 1, optimizer.states.size());
    for (size_t i = weight; i < arguments.size(); ++i)
      EXPECT_TRUE(arguments[i].in_place) << arguments[i].name;
  }
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
