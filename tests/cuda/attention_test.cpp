#include "kernels/attention/attention_path.h"
#include "kernels/attention/documents.h"

#include <cmath>

#include "base/rng.h"
#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Case {
  int64_t rows, seq_len;
  int64_t heads, kv_heads, d, dv;
  int64_t window = 0;
  bool documents = false;  // doc_start inside sequences
  bool sinks = false;
  bool deterministic = true;
  double starts = 0.04;  // share of rows that begin a document

  int64_t width() const { return (heads + kv_heads) * d + kv_heads * dv; }
  AttrSet attrs() const {
    return {{"deterministic", deterministic ? 1.0 : 0.0},
            {"documents", documents ? 1.0 : 0.0},
            {"head_dim", double(d)},
            {"heads", double(heads)},
            {"kv_heads", double(kv_heads)},
            {"scale", 1.0 / std::sqrt(double(d))},
            {"seq_len", double(seq_len)},
            {"v_head_dim", double(dv)},
            {"window", double(window)}};
  }
  Tensor doc_start() const {
    Tensor t = Tensor::zeros(Dtype::I32, {rows});
    const base::RandomStream random(7, base::RandomUse::Test, 0, 0);
    int64_t start = 0;
    for (int64_t i = 0; i < rows; ++i) {
      if (i % seq_len == 0 || (documents && random.uniform(static_cast<uint64_t>(i)) < starts)) start = i;
      t.set(i, double(start));
    }
    return t;
  }
  std::string name() const {
    return std::to_string(rows) + " rows, " + std::to_string(heads) + "/" + std::to_string(kv_heads) +
           " heads of " + std::to_string(d) + "/" + std::to_string(dv) + ", window " +
           std::to_string(window) + (documents ? ", documents" : "") + (sinks ? ", sinks" : "");
  }
};

std::string path_of(const Case& c, Dtype type, Phase phase) {
  device::cuda::Lane lane;
  const std::vector<int64_t> shape{c.rows, c.width()};
  std::vector<Arg> args(program::arguments_of(KernelKind::attention, phase).size());
  for (Arg& arg : args) arg = {nullptr, type, shape, program::Access::Read, true};
  const AttrSet attrs = c.attrs();
  return attention_path({args, &attrs, nullptr}, phase, lane);
}

// What a bf16 result may be off: probabilities and score gradients are rounded to bf16 before they are
// multiplied, the result once more.
Compare allowed(Dtype type) { return type == Dtype::BF16 ? Compare{0.008, 0.03} : Compare{5e-6, 2e-5}; }

// Forward, then backward and the sinks' gradient from the GPU's own out and lse.
void expect_case(const Case& c, Dtype type) {
  SCOPED_TRACE(c.name());
  const AttrSet attrs = c.attrs();
  Tensor qkv = Tensor::normal(type, {c.rows, c.width()}, 1), docs = c.doc_start();
  Tensor sinks = Tensor::normal(type, {c.heads}, 2);
  Tensor out = Tensor::nan(type, {c.rows, c.heads * c.dv}), lse = Tensor::nan(Dtype::F32, {c.rows, c.heads});
  expect_agrees(KernelKind::attention, Phase::Forward,
                {in(qkv), in(docs), c.sinks ? in(sinks) : none(), testing::out(out), testing::out(lse)},
                attrs, allowed(type));
  if (::testing::Test::HasFatalFailure()) return;
  Tensor dout = Tensor::normal(type, {c.rows, c.heads * c.dv}, 3),
         dqkv = Tensor::nan(type, {c.rows, c.width()});
  expect_agrees(KernelKind::attention, Phase::BackwardInput,
                {in(dout), in(qkv), in(out), in(lse), in(docs), testing::out(dqkv)}, attrs, allowed(type));
  if (!c.sinks) return;
  for (Dtype gradient : {Dtype::F32, type}) {
    Tensor dsinks = Tensor::normal(gradient, {c.heads}, 4);
    expect_agrees(KernelKind::attention, Phase::BackwardWeight,
                  {in(dout), in(out), in(lse), in(sinks), add(dsinks)}, attrs, bound(gradient, 64));
    expect_agrees(KernelKind::attention, Phase::BackwardWeight,
                  {in(dout), in(out), in(lse), in(sinks), testing::out(dsinks)}, attrs, bound(gradient, 64));
  }
}

TEST(CudaAttention, CudnnTakesWholeSequencesInBf16) {
  PLEAT_NEEDS_GPU();
  for (const Case& c : std::initializer_list<Case>{
           {256, 128, 4, 4, 128, 128},                // as many key as query heads
           {512, 256, 8, 2, 128, 128},                // grouped
           {384, 128, 8, 1, 64, 64},                  // one key head
           {256, 256, 4, 4, 192, 128},                // latent attention
           {256, 128, 4, 2, 40, 24},                  // narrow, multiples of 8
           {514, 257, 4, 2, 64, 64},                  // a length no tile divides
           {66, 33, 2, 1, 128, 128},                  //
           {512, 256, 4, 2, 64, 64, 100},             // window
           {512, 256, 4, 2, 64, 64, 1},               //
           {256, 256, 4, 2, 64, 64, 256},             // a window as long as the sequence
           {256, 128, 8, 2, 64, 64, 0, false, true},  // sinks
           {512, 256, 8, 2, 64, 64, 96, false, true},
       }) {
    EXPECT_EQ(path_of(c, Dtype::BF16, Phase::Forward), "cudnn") << c.name();
    EXPECT_EQ(path_of(c, Dtype::BF16, Phase::BackwardInput), "cudnn") << c.name();
    expect_case(c, Dtype::BF16);
  }
}

// The faster backward may differ from run to run, so it is compared with the deterministic one.
TEST(CudaAttention, FasterBackwardIsCloseToTheDeterministicOne) {
  PLEAT_NEEDS_GPU();
  for (Case c : {Case{512, 256, 8, 2, 128, 128}, Case{256, 256, 4, 4, 192, 128}}) {
    Tensor qkv = Tensor::normal(Dtype::BF16, {c.rows, c.width()}, 1), docs = c.doc_start();
    Tensor out = Tensor::nan(Dtype::BF16, {c.rows, c.heads * c.dv}),
           lse = Tensor::nan(Dtype::F32, {c.rows, c.heads});
    call_cuda(KernelKind::attention, Phase::Forward,
              {in(qkv), in(docs), none(), testing::out(out), testing::out(lse)}, c.attrs());
    Tensor dout = Tensor::normal(Dtype::BF16, {c.rows, c.heads * c.dv}, 3);
    std::vector<double> gradient[2];
    for (bool deterministic : {false, true}) {
      c.deterministic = deterministic;
      EXPECT_EQ(path_of(c, Dtype::BF16, Phase::BackwardInput), "cudnn") << c.name();
      Tensor dqkv = Tensor::nan(Dtype::BF16, {c.rows, c.width()});
      call_cuda(KernelKind::attention, Phase::BackwardInput,
                {in(dout), in(qkv), in(out), in(lse), in(docs), testing::out(dqkv)}, c.attrs());
      gradient[deterministic] = dqkv.numbers();
    }
    EXPECT_LT(norm_error(gradient[0], gradient[1]), 0.01) << c.name();
  }
}

TEST(CudaAttention, OwnKernelTakesTheRestInBf16) {
  PLEAT_NEEDS_GPU();
  for (const Case& c : std::initializer_list<Case>{
           {1, 1, 1, 1, 8, 8},
           {129, 129, 3, 1, 33, 17},           // odd widths
           {256, 128, 4, 2, 60, 64, 0, true},  // documents
           {257, 257, 2, 1, 252, 252, 50, true, true},
           {200, 100, 6, 3, 7, 5, 33, false, true},
       }) {
    EXPECT_EQ(path_of(c, Dtype::BF16, Phase::Forward).substr(0, 5), "own: ") << c.name();
    EXPECT_EQ(path_of(c, Dtype::BF16, Phase::BackwardInput).substr(0, 5), "own: ") << c.name();
    expect_case(c, Dtype::BF16);
  }
}

// In any number: few go to cuDNN, more than its plan has room for to the own kernels behind it.
TEST(CudaAttention, DocumentsInBf16) {
  PLEAT_NEEDS_GPU();
  for (Case c : std::initializer_list<Case>{
           {1024, 1024, 4, 2, 128, 128, 0, true},       //
           {1024, 512, 8, 1, 64, 64, 0, true, true},    // sinks
           {1026, 513, 4, 4, 192, 128, 0, true, true},  // latent attention, a length no tile divides
           {1024, 512, 4, 2, 64, 64, 100, true},        // window
           {514, 257, 4, 2, 40, 24, 0, true},           // narrow
       })
    for (const double starts : {0.001, 0.04}) {
      c.deterministic = false, c.starts = starts;
      EXPECT_EQ(path_of(c, Dtype::BF16, Phase::Forward), "cudnn") << c.name();
      EXPECT_EQ(path_of(c, Dtype::BF16, Phase::BackwardInput), "cudnn") << c.name();
      expect_case(c, Dtype::BF16);
    }
}

// cuDNN did not write parts of their gradients.
TEST(CudaAttention, DocumentsOfWideHeadsLackedPartsOfTheirGradients) {
  PLEAT_NEEDS_GPU();
  for (Case c : std::initializer_list<Case>{{512, 512, 2, 1, 256, 256, 50, true, true},
                                            {512, 512, 2, 2, 256, 256, 50, true, true},
                                            {512, 512, 2, 2, 256, 256, 0, true}})
    for (const double starts : {0.001, 0.04}) {
      c.deterministic = false, c.starts = starts;
      EXPECT_EQ(path_of(c, Dtype::BF16, Phase::BackwardInput).substr(0, 5), "own: ") << c.name();
      expect_case(c, Dtype::BF16);
    }
}

// Own kernels on the tensor cores of Hopper: every pair of widths they are built for, one and several held
// blocks of rows, heads that share keys, rows in no whole tile.
TEST(CudaAttention, DeterministicGradientsOfDocuments) {
  PLEAT_NEEDS_GPU();
  for (Case c : std::initializer_list<Case>{
           {64, 64, 2, 1, 64, 64, 0, true},
           {300, 300, 4, 2, 64, 64, 0, true, true},
           {320, 160, 4, 1, 128, 128, 0, true},
           {514, 257, 2, 2, 128, 96, 77, true},
           {390, 195, 2, 2, 192, 128, 0, true, true},
           {260, 260, 4, 2, 192, 128, 60, true},
           {200, 100, 4, 2, 40, 24, 0, true},
       })
    for (const double starts : {0.0, 0.02}) {
      c.starts = starts;
      EXPECT_EQ(path_of(c, Dtype::BF16, Phase::BackwardInput),
                "own: cuDNN: documents have no deterministic backward")
          << c.name();
      expect_case(c, Dtype::BF16);
    }
}

// Rows that see from anywhere on are not documents, whatever their number.
TEST(CudaAttention, StartsThatAreNoDocuments) {
  PLEAT_NEEDS_GPU();
  Case c{1024, 1024, 4, 2, 64, 64, 0, true};
  c.deterministic = false;
  Tensor starts = Tensor::zeros(Dtype::I32, {c.rows});
  for (int64_t i = 0; i < c.rows; ++i) starts.set(i, double(i < 700 ? 0 : i < 900 ? 300 : 650));
  Tensor qkv = Tensor::normal(Dtype::BF16, {c.rows, c.width()}, 1);
  Tensor out = Tensor::nan(Dtype::BF16, {c.rows, c.heads * c.dv}),
         lse = Tensor::nan(Dtype::F32, {c.rows, c.heads});
  expect_agrees(KernelKind::attention, Phase::Forward,
                {in(qkv), in(starts), none(), testing::out(out), testing::out(lse)}, c.attrs(),
                allowed(Dtype::BF16));
  Tensor dout = Tensor::normal(Dtype::BF16, {c.rows, c.heads * c.dv}, 3),
         dqkv = Tensor::nan(Dtype::BF16, {c.rows, c.width()});
  expect_agrees(KernelKind::attention, Phase::BackwardInput,
                {in(dout), in(qkv), in(out), in(lse), in(starts), testing::out(dqkv)}, c.attrs(),
                allowed(Dtype::BF16));
}

// What cuDNN gets to see.
TEST(CudaAttention, DocumentsAreListed) {
  PLEAT_NEEDS_GPU();
  constexpr int kRows = 3000, kRoom = 7;
  const AttentionShape shape{kRows, 4, 2, 16, 8};
  const auto list = [&](const std::vector<int>& begins, int64_t seq_len, bool broken = false) {
    std::vector<int32_t> starts(kRows);
    for (int i = 0, document = -1; i < kRows; ++i) {
      if (document + 1 < static_cast<int>(begins.size()) && begins[static_cast<size_t>(document + 1)] == i)
        ++document;
      starts[static_cast<size_t>(i)] = begins[static_cast<size_t>(document)];
    }
    if (broken) starts.back() -= 1;
    device::cuda::Lane lane;
    device::cuda::Memory memory(attention::document_list_bytes(kRoom) + kRows * 4);
    lane.fill(memory.data(), 0xA5, attention::document_list_bytes(kRoom));
    std::byte* const at = memory.data() + attention::document_list_bytes(kRoom);
    lane.copy_in(at, starts.data(), kRows * 4);
    const attention::DocumentList to = attention::document_list_at(memory.data(), kRoom);
    attention::list_documents(shape, seq_len, kRoom, reinterpret_cast<int32_t*>(at), to, lane.stream());
    std::vector<int32_t> lengths(kRoom), listed(1);
    std::vector<int64_t> qkv_at(kRoom + 1), out_at(kRoom + 1), stats_at(kRoom + 1);
    lane.copy_out(listed.data(), to.listed, 4);
    lane.copy_out(lengths.data(), to.lengths, kRoom * 4);
    lane.copy_out(qkv_at.data(), to.qkv_at, (kRoom + 1) * 8);
    lane.copy_out(out_at.data(), to.out_at, (kRoom + 1) * 8);
    lane.copy_out(stats_at.data(), to.stats_at, (kRoom + 1) * 8);
    lane.synchronize();
    for (size_t i = 0; i <= kRoom; ++i) {
      const int64_t row = stats_at[i] / shape.heads;
      EXPECT_EQ(qkv_at[i], row * shape.width());
      EXPECT_EQ(out_at[i], row * shape.out_width());
      EXPECT_EQ(row, listed[0] != 0 && i < begins.size() ? begins[i] : kRows);
    }
    lengths.push_back(listed[0]);
    return lengths;
  };
  EXPECT_EQ(list({0, 1, 1500, 2999}, kRows), (std::vector<int32_t>{1, 1499, 1499, 1, 0, 0, 0, 1}));
  EXPECT_EQ(list({0}, kRows), (std::vector<int32_t>{kRows, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(list({0, 100, 200, 300, 400, 500, 600}, kRows).back(), 1);
  const std::vector<int32_t> nothing(kRoom + 1, 0);
  EXPECT_EQ(list({0, 100, 200, 300, 400, 500, 600, 700}, kRows), nothing);  // more than there is room for
  EXPECT_EQ(list({0, 1500}, 1499), nothing);                                // one is too long
  EXPECT_EQ(list({0, 1500}, kRows, true), nothing);                         // not a document
}

TEST(CudaAttention, OwnKernelTakesFloat) {
  PLEAT_NEEDS_GPU();
  for (const Case& c : std::initializer_list<Case>{
           {1, 1, 1, 1, 1, 1},
           {33, 33, 2, 1, 7, 3},
           {256, 128, 4, 2, 64, 64},
           {300, 150, 4, 2, 128, 128, 40, true, true},
           {257, 257, 2, 2, 192, 128, 0, true},
           {140, 70, 2, 1, 256, 256, 0, true, true},
           {140, 140, 2, 1, 200, 96, 100, true},
       }) {
    EXPECT_EQ(path_of(c, Dtype::F32, Phase::Forward), "own: the type is f32") << c.name();
    expect_case(c, Dtype::F32);
  }
}

TEST(CudaAttention, ReasonsAreNamed) {
  PLEAT_NEEDS_GPU();
  EXPECT_EQ(path_of({256, 128, 4, 2, 64, 64, 0, true}, Dtype::BF16, Phase::BackwardInput),
            "own: cuDNN: documents have no deterministic backward");
  EXPECT_EQ(path_of({32768, 32768, 32, 1, 64, 64}, Dtype::BF16, Phase::BackwardInput),
            "own: cuDNN: its deterministic backward would keep too many scores");
  EXPECT_EQ(path_of({256, 128, 4, 2, 60, 64}, Dtype::BF16, Phase::BackwardInput),
            "own: a head's width is not a multiple of 8");
}

// Queries in two runs, as a rank of a balanced context group has them, and scattered ones.
TEST(CudaAttention, ContextQueriesAtAnyRows) {
  PLEAT_NEEDS_GPU();
  for (Dtype type : {Dtype::BF16, Dtype::F32})
    for (const Case& c :
         {Case{320, 320, 4, 2, 64, 64, 0, true, true}, Case{200, 100, 4, 1, 48, 32, 37, true}}) {
      SCOPED_TRACE(c.name());
      std::vector<double> runs, scattered;
      for (int64_t i = 0; i < c.rows / 4; ++i) runs.push_back(double(i));
      for (int64_t i = c.rows * 3 / 4; i < c.rows; ++i) runs.push_back(double(i));
      for (int64_t i = 0; i < c.rows / 3; ++i) scattered.push_back(double((i * 7 + 5) % c.rows));
      for (const std::vector<double>& rows : {runs, scattered}) {
        const int64_t n = static_cast<int64_t>(rows.size());
        Tensor row = Tensor::of(Dtype::I32, {n}, rows), docs = c.doc_start();
        Tensor qkv = Tensor::normal(type, {n, c.width()}, 1),
               kv = Tensor::normal(type, {c.rows, c.kv_heads * (c.d + c.dv)}, 5);
        Tensor sinks = Tensor::normal(type, {c.heads}, 2);
        Tensor out = Tensor::nan(type, {n, c.heads * c.dv}), lse = Tensor::nan(Dtype::F32, {n, c.heads});
        expect_agrees(KernelKind::context_attention, Phase::Forward,
                      {in(qkv), in(kv), in(row), in(docs), c.sinks ? in(sinks) : none(), testing::out(out),
                       testing::out(lse)},
                      c.attrs(), allowed(type));
        if (::testing::Test::HasFatalFailure()) return;
        Tensor dout = Tensor::normal(type, {n, c.heads * c.dv}, 3),
               dq = Tensor::nan(type, {n, c.heads * c.d}),
               dkv = Tensor::nan(type, {c.rows, c.kv_heads * (c.d + c.dv)});
        expect_agrees(KernelKind::context_attention, Phase::BackwardInput,
                      {in(dout), in(qkv), in(kv), in(out), in(lse), in(row), in(docs), testing::out(dq),
                       testing::out(dkv)},
                      c.attrs(), allowed(type));
      }
    }
}

TEST(CudaAttention, BadShapesAreNamed) {
  PLEAT_NEEDS_GPU();
  const Case c{64, 64, 4, 2, 64, 64};
  Tensor qkv = Tensor::normal(Dtype::BF16, {c.rows, c.width() + 1}, 1), docs = c.doc_start();
  Tensor out = Tensor::nan(Dtype::BF16, {c.rows, c.heads * c.dv}),
         lse = Tensor::nan(Dtype::F32, {c.rows, c.heads});
  try {
    call_cuda(KernelKind::attention, Phase::Forward,
              {in(qkv), in(docs), none(), testing::out(out), testing::out(lse)}, c.attrs());
    ADD_FAILURE() << "a row too wide was accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("'qkv'"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
