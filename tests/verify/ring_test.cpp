// Context ranks as a ring: every kind of attention and every way documents can lie, against one rank in
// double; and bits that nothing but the order of the ring may decide.
#include <algorithm>

#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

constexpr double kBound = 1e-10;
using Sets = std::vector<std::string>;

model::Mesh ring(Axes axes) {
  model::Mesh m = mesh_of(axes);
  m.context = model::ContextKind::Ring;
  return m;
}

const Sets kLatent = {"model.attention=\"mla\"",    "model.q_lora_rank=12",      "model.kv_lora_rank=8",
                      "model.qk_nope_head_dim=128", "model.qk_rope_head_dim=64", "model.v_head_dim=128",
                      "model.num_kv_heads=",        "model.head_dim=",           "model.num_heads=4"};

Sets with(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_ring_equal(const config::Config& c, const model::Mesh& mesh, const RunOptions& options = {}) {
  SCOPED_TRACE(text_of(mesh));
  EXPECT_EQ(difference(c, run_on(c, {}, options), run_on(c, mesh, options), kBound), "");
}

TEST(Ring, EveryKindOfAttention) {
  for (const Sets& sets : std::vector<Sets>{
           {"model.num_kv_heads=2"},
           {"model.num_kv_heads=2", "model.attention_sinks=true"},
           {"model.num_kv_heads=4", "model.sliding_window=3"},  // less than a chunk
           {"model.sliding_window=9", "model.attention_sinks=true", "model.qkv_bias=true"},
           {"model.qk_norm=true", "model.num_mtp_layers=1"},
           kLatent,
           with(kLatent, {"model.q_lora_rank=0", "model.sliding_window=5"}),
       }) {
    const config::Config c = small_model(with(sets, {"train.micro_batch=2"}));
    SCOPED_TRACE(sets.back());
    expect_ring_equal(c, ring({1, 2}));
    expect_ring_equal(c, ring({1, 4, 1, 1, 2, 1}));
    expect_ring_equal(c, ring({2, 2, 1, 2, 2, 1}));
  }
}

TEST(Ring, WithEveryOtherAxis) {
  const config::Config c = small_model({"model.num_kv_heads=4", "moe.shared_ffn_hidden_size=8"});
  for (const Axes& axes :
       std::vector<Axes>{{1, 8}, {2, 4, 1, 1, 8, 1}, {1, 2, 2, 2, 2, 1}, {2, 2, 2, 1, 2, 2}})
    expect_ring_equal(c, ring(axes));
}

// 24 rows: chunks of 6 rows over two ranks, of 3 over four.
const std::vector<std::vector<int>> kPackings = {
    {24},              // one over all chunks
    {2, 20, 2},        // ends inside the first and the last chunk, over all between
    {1, 13, 1, 1, 8},  // single tokens, one over three chunks and more
    {6, 6, 6, 6},      // ends where chunks of two ranks end
    {3, 9, 6, 3},      // ends where chunks of four ranks end, and padding behind
    {12, 12},          // in the middle, where the order of the ring turns
    {5, 1, 7, 11},
    std::vector<int>(24, 1),
};

TEST(Ring, DocumentsOfAnyLength) {
  for (const Sets& sets : std::vector<Sets>{{"model.num_kv_heads=2"},
                                            {"model.num_kv_heads=2", "model.sliding_window=8"},
                                            {"model.sliding_window=13", "model.attention_sinks=true"},
                                            {"model.sliding_window=1"},
                                            kLatent}) {
    const config::Config c = small_model(with(sets, {"train.num_microbatches=1", "train.seq_len=24"}));
    for (const std::vector<int>& lengths : kPackings) {
      SCOPED_TRACE(sets.back() + fmt::format(", first document {} of {}", lengths[0], lengths.size()));
      std::vector<int> seeds(lengths.size());
      for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = static_cast<int>(i) + 1;
      RunOptions options;
      options.num_steps = 1;
      options.batches = {packed_batch(c, {{lengths, seeds}})};
      options.taps = {"x_out"};
      const LayoutRun one = run_on(c, {}, options);
      for (const model::Mesh& mesh : {ring({1, 2}), ring({1, 4}), ring({2, 4, 1, 1, 2, 1})}) {
        SCOPED_TRACE(text_of(mesh));
        const LayoutRun run = run_on(c, mesh, options);
        EXPECT_EQ(difference(c, one, run, kBound), "");
        for (const auto& [name, tensor] : one.steps[0].taps) {
          Tensor gap = run.steps[0].taps.at(name);
          for (size_t i = 0; i < gap.size(); ++i) gap[i] -= tensor[i];
          EXPECT_LT(length_of(gap) / length_of(tensor), 1e-13) << name;
        }
      }
    }
  }
}

std::string bits_differ(const config::Config& c, const LayoutRun& a, const LayoutRun& b) {
  return compare(a, b, model::make_parameters(c)).bitwise ? "" : "the bits differ";
}

const Sets kFloat = {"model.dtype=\"float32\"", "model.num_kv_heads=2", "moe.shared_ffn_hidden_size=8"};

TEST(Ring, BitsDoNotDependOnTiming) {
  const config::Config c = small_model(kFloat);
  for (const Axes& axes : std::vector<Axes>{{1, 4}, {2, 2, 1, 2, 2, 1}}) {
    const LayoutRun first = run_on(c, ring(axes), {});
    for (const uint64_t seed : {1, 7}) {
      RunOptions options;
      options.delay_seed = seed;
      options.num_steps = 3;
      EXPECT_EQ(bits_differ(c, first, run_on(c, ring(axes), options)), "");
    }
  }
}

// Dead memory is overwritten while lanes run as threads with pauses: the buffers of the ring are not taken
// again too early, in forward, backward and replayed forward.
TEST(Ring, DeadMemoryIsDead) {
  for (const char* modules : {"recompute.modules=[]", "recompute.modules=[\"core_attention\"]"}) {
    const config::Config c = small_model(with(kFloat, {modules}));
    for (const Axes& axes : std::vector<Axes>{{1, 4}, {1, 2, 1, 2, 1, 1}}) {
      const LayoutRun plain = run_on(c, ring(axes), {});
      RunOptions options;
      options.poison = true;
      options.delay_seed = 3;
      EXPECT_EQ(bits_differ(c, plain, run_on(c, ring(axes), options)), "") << modules;
    }
  }
}

TEST(Ring, RecomputeAndPipelineChangeNoBit) {
  const config::Config plain = small_model(kFloat);
  const LayoutRun first = run_on(plain, ring({1, 4}), {});
  for (const char* modules : {"core_attention", "layer", "norm\",\"experts"}) {
    const config::Config c = small_model(with(kFloat, {fmt::format("recompute.modules=[\"{}\"]", modules)}));
    EXPECT_EQ(bits_differ(c, first, run_on(c, ring({1, 4}), {})), "") << modules;
  }
  EXPECT_EQ(bits_differ(plain, run_on(plain, ring({1, 2}), {}), run_on(plain, ring({1, 2, 1, 2}), {})), "");
}

// A ring adds in its own order, so it is near the other forms, not the same; float32 shows that it is near.
TEST(Ring, NearTheOtherFormsInFloat) {
  const config::Config c = small_model(kFloat);
  const LayoutRun gathered = run_on(c, mesh_of({1, 4}), {});
  EXPECT_EQ(difference(c, gathered, run_on(c, ring({1, 4}), {}), 1e-4), "");
}

}  // namespace
}  // namespace pleat::verify
