// Attention in the shapes of the models' micro-batches: sequences of 4096, whole and in packed documents.
// FLOP of the pairs that see each other: 2 products forward, 5 backward.
#include <cmath>

#include "bench/case_shapes.h"

namespace pleat::bench {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr int64_t kSeqLen = 4096;
constexpr int64_t kDocuments[] = {256, 1792, 640, 1408};  // rows of those of a sequence

struct Rows {
  std::vector<double> doc_start;
  double pairs = 0;
};

Rows rows_of(int64_t tokens, std::span<const int64_t> lengths) {
  Rows out;
  for (size_t i = 0; static_cast<int64_t>(out.doc_start.size()) < tokens; ++i) {
    const int64_t length = lengths[i % lengths.size()];
    out.doc_start.insert(out.doc_start.end(), static_cast<size_t>(length),
                         static_cast<double>(out.doc_start.size()));
    out.pairs += 0.5 * double(length) * double(length + 1);
  }
  return out;
}

void add_model(CaseList& all, const Model& m, const char* what, std::span<const int64_t> lengths,
               bool documents) {
  const Rows rows = rows_of(m.tokens, lengths);
  const int64_t T = m.tokens;
  const Argument qkv = in(Dtype::BF16, {T, m.packed()}), doc_start = in(Dtype::I32, {T}, rows.doc_start),
                 result = in(Dtype::BF16, {T, m.heads * m.v_dim});
  // Of scores of random numbers, so that the rebuilt probabilities are finite.
  const Argument lse = in(Dtype::F32, {T, m.heads}, {std::log(double(kSeqLen))});
  const double heads = double(m.heads), d = double(m.head_dim), dv = double(m.v_dim);
  const auto add = [&](const char* name, Phase phase, bool deterministic, std::vector<Argument> arguments,
                       double flops_per_pair) {
    const program::AttrSet attrs = {{"deterministic", deterministic ? 1.0 : 0.0},
                                    {"documents", documents ? 1.0 : 0.0},
                                    {"head_dim", d},
                                    {"heads", heads},
                                    {"kv_heads", double(m.kv_heads)},
                                    {"scale", 1.0 / std::sqrt(d)},
                                    {"seq_len", double(kSeqLen)},
                                    {"v_head_dim", dv},
                                    {"window", 0}};
    all.push_back({"attention", std::string(m.name) + " " + what + " " + name, KernelKind::attention, phase,
                   std::move(arguments), attrs, heads * rows.pairs * flops_per_pair, 0});
  };
  add("fwd", Phase::Forward, true,
      {qkv, doc_start, none(), out(Dtype::BF16, {T, m.heads * m.v_dim}), out(Dtype::F32, {T, m.heads})},
      2 * (d + dv));
  for (bool deterministic : {false, true})
    add(deterministic ? "bwd deterministic" : "bwd", Phase::BackwardInput, deterministic,
        {result, qkv, result, lse, doc_start, out(Dtype::BF16, {T, m.packed()})}, 2 * (3 * d + 2 * dv));
}

}  // namespace

void add_attention(CaseList& all) {
  for (const Model& m : models()) {
    add_model(all, m, "attention", {&kSeqLen, 1}, false);
    add_model(all, m, "attention of documents", kDocuments, true);
  }
}

}  // namespace pleat::bench
