// States of the optimizer on the GPU in every format and in both places: copies change no bit, nor does the graph; and
// activations that wait in the host's memory come back as they were.
#include <cmath>
#include <cstring>
#include <map>

#include "cuda/cuda_support.h"
#include "device/cuda/cuda.h"
#include "interpret/trace/timeline.h"
#include "runtime/programs.h"
#include "train/bench_step.h"

namespace pleat::train {
namespace {

using kernels::testing::no_gpu;
using Words = std::vector<std::string>;

config::Config model_with(const Words& sets, const char* device = "cuda") {
  Words all = {std::string("device.kind=\"") + device + "\"", "device.threads=2", "optimizer.lr=1e-2"};
  all.insert(all.end(), sets.begin(), sets.end());
  return config::resolve(config::parse(R"(
[model]
vocab_size = 320
hidden_size = 128
num_layers = 2
num_heads = 4
num_kv_heads = 2
head_dim = 32
[moe]
num_experts = 8
top_k = 2
ffn_hidden_size = 64
[train]
micro_batch = 2
num_microbatches = 2
seq_len = 64
)",
                                       all));
}

runtime::ProgramChoice train_only() {
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  return choice;
}

// What lives across steps, by name.
std::map<std::string, std::vector<std::byte>> state_of(const runtime::Programs& programs) {
  std::map<std::string, std::vector<std::byte>> out;
  for (const checkpoint::TensorRef& t : programs.tensors()) out[t.name] = t.bytes.copy();
  return out;
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<std::byte>> state;
  bool operator==(const Trained&) const = default;
};

Trained train(const config::Config& c, int steps) {
  runtime::Programs programs(c, train_only());
  programs.initialize();
  Trained out;
  for (int step = 1; step <= steps; ++step) {
    write_random_batch(programs.train(), c, 1 + step % 4);
    programs.train().run();
    const double* loss = static_cast<const double*>(programs.train().data("loss"));
    out.losses.push_back(loss[0] / loss[1]);
  }
  out.state = state_of(programs);
  return out;
}

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<Words>& formats() {
  static const Words narrow = {"model.dtype=\"bfloat16\""}, codes = {"optimizer.moment_dtype=\"block8\""};
  static const std::vector<Words> all = {
      {"model.dtype=\"float32\""},
      {"model.dtype=\"float32\"", "optimizer.moment1_dtype=\"block8\"", "optimizer.moment2_dtype=\"block8\""},
      narrow,
      with(narrow, codes),
      with(narrow, {"optimizer.master=\"float24\""}),
      with(with(narrow, codes), {"optimizer.master=\"float24\"", "optimizer.grad_dtype=\"bfloat16\""}),
      with(with(narrow, codes), {"optimizer.master=\"bfloat16\""}),
      with(narrow, {"optimizer.moment1_dtype=\"block8\"", "optimizer.moment2_dtype=\"bfloat16\"",
                    "optimizer.master=\"bfloat16\""})};
  return all;
}

TEST(CudaHostStates, FormatsAndPlacesHaveOneWayEach) {
  PLEAT_NEEDS_GPU();
  std::vector<Trained> ends;
  for (const Words& format : formats()) {
    SCOPED_TRACE(format.back());
    const Trained here = train(model_with(format), 8);
    EXPECT_FALSE(here.state == train(model_with(format), 0).state) << "it moves";
    EXPECT_TRUE(train(model_with(format), 8) == here) << "again";
    EXPECT_TRUE(train(model_with(with(format, {"device.graph=false"})), 8) == here) << "stage by stage";
    const Words host = with(format, {"optimizer.state_space=\"host\""});
    for (const char* bucket : {"optimizer.state_bucket_mb=1", "optimizer.state_bucket_mb=64"}) {
      EXPECT_TRUE(train(model_with(with(host, {bucket})), 8) == here) << bucket;
      EXPECT_TRUE(train(model_with(with(host, {bucket, "device.graph=false"})), 8) == here)
          << bucket << ", stage by stage";
    }
    ends.push_back(here);
  }
  for (size_t i = 0; i < ends.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(ends[i] == ends[j]);
}

// Buckets smaller than tensors, so that updates go in pieces.
TEST(CudaHostStates, PiecesHaveTheBitsOfTheWhole) {
  PLEAT_NEEDS_GPU();
  for (const Words& format : formats()) {
    SCOPED_TRACE(format.back());
    const Words wide = with(format, {"model.vocab_size=20000"});
    const config::Config c =
        model_with(with(wide, {"optimizer.state_space=\"host\"", "optimizer.state_bucket_mb=1"}));
    EXPECT_TRUE(train(c, 4) == train(model_with(wide), 4));
    runtime::Programs programs(c, train_only());
    bool pieces = false;
    for (const program::Value& v : programs.train().program().values)
      pieces |= v.name.find(".device[1]") != std::string::npos;
    EXPECT_TRUE(pieces || format.back() == "optimizer.master=\"bfloat16\"");
  }
}

TEST(CudaHostStates, CodesFollowTheCpu) {
  PLEAT_NEEDS_GPU();
  const Words codes = formats()[1];
  const Trained cpu = train(model_with(codes, "cpu"), 8), gpu = train(model_with(codes), 8);
  for (size_t i = 0; i < cpu.losses.size(); ++i)
    EXPECT_NEAR(gpu.losses[i], cpu.losses[i], (i == 0 ? 1e-5 : 5e-3) * cpu.losses[i]) << "step " << i;
}

// Timed stage by stage: copies of one bucket run while another is updated, and both ways at once.
TEST(CudaHostStates, CopiesRunBesideUpdatesAndEachOther) {
  PLEAT_NEEDS_GPU();
  if (kernels::testing::only_once()) GTEST_SKIP() << "a sanitizer runs nothing side by side";
  const config::Config c = model_with({"model.dtype=\"bfloat16\"", "model.vocab_size=200000",
                                       "optimizer.state_space=\"host\"", "optimizer.state_bucket_mb=16"});
  runtime::Programs programs(c, train_only());
  programs.initialize();
  interpret::RunOptions timed;
  timed.timing = true;
  write_random_batch(programs.train(), c, 1);
  programs.train().run();
  write_random_batch(programs.train(), c, 2);
  programs.train().run(timed);
  const program::Program& p = programs.train().program();
  const auto& spans = programs.train().timeline().spans;
  double beside_each_other = 0, in_seconds = 0, beside_updates = 0;
  const auto overlap = [&](size_t a, size_t b) {
    return double(std::max<int64_t>(
        0, std::min(spans[a].end_ns, spans[b].end_ns) - std::max(spans[a].start_ns, spans[b].start_ns)));
  };
  for (size_t in = 0; in < spans.size(); ++in) {
    if (p.stages[in].op != program::Op::copy_in || p.stages[in].phase != program::Phase::Update) continue;
    in_seconds += double(spans[in].end_ns - spans[in].start_ns);
    for (size_t other = 0; other < spans.size(); ++other) {
      if (p.stages[other].phase != program::Phase::Update) continue;
      if (p.stages[other].op == program::Op::copy_out) beside_each_other += overlap(in, other);
      if (p.stages[other].op == program::Op::adamw_narrow) beside_updates += overlap(in, other);
    }
  }
  EXPECT_GT(beside_each_other, 0.3 * in_seconds);
  EXPECT_GT(beside_updates, 0);
}

TEST(CudaHostStates, StatesInTheHostsMemoryAreReadAndWrittenThere) {
  PLEAT_NEEDS_GPU();
  const Words format = with(formats()[5], {"optimizer.state_space=\"host\""});
  const config::Config c = model_with(format);
  runtime::Programs first(c, train_only()), second(c, train_only());
  first.initialize(), second.initialize();
  write_random_batch(first.train(), c, 1);
  first.train().run();
  const auto moved = state_of(first);
  EXPECT_FALSE(state_of(second) == moved);
  int on_host = 0;
  for (const checkpoint::Target& t : second.targets()) {
    ASSERT_EQ(static_cast<int64_t>(moved.at(t.name).size()), t.bytes.size());
    t.bytes.write(0, moved.at(t.name));
    EXPECT_EQ(t.bytes.on_host(), t.name.find(".moment") != std::string::npos || t.name.ends_with(".rest"))
        << t.name;
    on_host += t.bytes.on_host();
  }
  EXPECT_GT(on_host, 30);
  EXPECT_TRUE(state_of(second) == moved);
  for (runtime::Programs* p : {&first, &second}) write_random_batch(p->train(), c, 2), p->train().run();
  EXPECT_TRUE(state_of(first) == state_of(second));
}

TEST(CudaOffload, WhatWaitsOnTheHostComesBackWithItsBits) {
  PLEAT_NEEDS_GPU();
  for (const char* type : {"model.dtype=\"float32\"", "model.dtype=\"bfloat16\""}) {
    const Trained kept = train(model_with({type}), 8);
    const Words offload = {type, "offload.modules=[\"layer\"]", "offload.min_bytes=1024"};
    for (const Words& sets : {offload, with(offload, {"device.graph=false"})})
      EXPECT_TRUE(train(model_with(sets), 8) == kept) << sets.back();
  }
}

// Locked in pieces, and copies cross from one to the next.
TEST(CudaPinned, LargeMemoryIsZeroAndCopiesCrossItsPieces) {
  PLEAT_NEEDS_GPU();
  if (kernels::testing::only_once()) GTEST_SKIP() << "too slow under a sanitizer";
  constexpr int64_t kBytes = device::cuda::kPinnedPiece + (int64_t{256} << 20), kAround = int64_t{64} << 20;
  const device::cuda::Pinned memory(kBytes);
  for (int64_t at = 0; at < kBytes; at += 4096) ASSERT_EQ(memory.data()[at], std::byte{0}) << at;
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  const int64_t border =
      device::cuda::kPinnedPiece - static_cast<int64_t>(address % device::cuda::kPinnedPiece);
  if (border < kAround / 2 || border + kAround / 2 > kBytes) GTEST_SKIP() << "the border lies at an end";
  std::byte* const around = memory.data() + border - kAround / 2;
  for (int64_t i = 0; i < kAround; ++i) around[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  device::cuda::Lane lane;
  const device::cuda::Memory there(kAround);
  lane.copy_in(there.data(), around, kAround);
  lane.synchronize();
  std::vector<std::byte> kept(around, around + kAround);
  lane.fill(around, 0, kAround);
  lane.copy_out(around, there.data(), kAround);
  lane.synchronize();
  EXPECT_EQ(std::memcmp(kept.data(), around, static_cast<size_t>(kAround)), 0);
}

TEST(CudaPinned, ARefusalNamesTheLimit) {
  PLEAT_NEEDS_GPU();
  try {
    const device::cuda::Pinned memory(int64_t{1} << 46);
    ADD_FAILURE() << "not refused";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("65536.00 GiB of the host's memory are needed"), std::string::npos)
        << e.what();
    EXPECT_NE(std::string(e.what()).find("free"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace pleat::train
