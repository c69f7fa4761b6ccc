// Every auxiliary loss alone and all together, with documents that lie inside and across blocks.
#include <cmath>

#include "cuda/routing_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

// Documents of `length` tokens and one of twice that now and then.
Tensor documents(int64_t T, int64_t length) {
  Tensor doc_start = Tensor::zeros(Dtype::I32, {T});
  for (int64_t t = 0, start = 0; t < T; ++t) {
    if (t - start >= (start % 3 == 0 ? length : 2 * length)) start = t;
    doc_start.set(t, static_cast<double>(start));
  }
  return doc_start;
}

TEST(CudaRouterAux, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  struct Coefs {
    double micro, sequence, global, z;
    int hf;
  };
  // The last ones: more choices and more experts than teams of lanes hold, more tokens than all blocks at
  // once.
  for (auto [T, E, k] : {std::tuple{1, 1, 1},
                         {40, 8, 2},
                         {333, 64, 6},
                         {131, 30, 3},
                         {65, 128, 8},
                         {200, 129, 8},
                         {100, 300, 4},
                         {90, 20, 9},
                         {30, 700, 5},
                         {8501, 8, 2}})
    for (int score : {0, 1, 2})
      for (const Coefs& c : {Coefs{0.01, 0, 0, 0, 0},
                             {0, 0.02, 0, 0, 0},
                             {0, 0, 0.03, 0, 0},
                             {0, 0, 0, 0.001, 0},
                             {0.01, 0.02, 0.03, 0.001, 0},
                             {0.01, 0.02, 0, 0.001, 1},
                             {0, 0, 0, 0, 0}})
        for (bool update : {false, true}) {
          if (only_once() && (score == 2 || update != (score == 1))) continue;
          SCOPED_TRACE("T " + std::to_string(T) + " E " + std::to_string(E) + " score " +
                       std::to_string(score));
          Tensor logits = Tensor::normal(Dtype::F32, {T, E}, 1), valid = some_valid(T, T == 40);
          if (E >= 64)  // many equal
            for (int64_t i = 0; i < logits.size(); ++i) logits.set(i, std::round(4 * logits.at(i)) / 4);
          Tensor doc_start = documents(T, T == 333 ? 7 : 30);
          Tensor norm = Tensor::of(Dtype::F64, {4}, {1.0, 0.5, 0.25, 0.125});
          Tensor counts = Tensor::zeros(Dtype::I64, {E}), tokens = Tensor::zeros(Dtype::I64, {1});
          int64_t num_valid = 0;
          for (int64_t t = 0; t < T; ++t) num_valid += valid.at(t) != 0;
          for (int64_t e = 0; e < E; ++e) counts.set(e, static_cast<double>(3 + e * 7 % 11));
          tokens.set(0, static_cast<double>(2 * num_valid));
          Tensor dlogits = Tensor::normal(Dtype::F32, {T, E}, 2, 1e-3),
                 losses = Tensor::of(Dtype::F64, {4}, {1, 2, 3, 4});
          const bool given = c.global != 0 || c.hf;
          expect_agrees(KernelKind::router_aux, Phase::BackwardInput,
                        {in(logits), in(valid), in(doc_start), in(norm), given ? in(counts) : none(),
                         given ? in(tokens) : none(), update ? add(dlogits) : out(dlogits),
                         update ? add(losses) : out(losses)},
                        {{"experts", double(E)},
                         {"global_coef", c.global},
                         {"hf", double(c.hf)},
                         {"micro_coef", c.micro},
                         {"num_layers", 2},
                         {"score", double(score)},
                         {"seq_coef", c.sequence},
                         {"top_k", double(k)},
                         {"z_coef", c.z}},
                        bound(Dtype::F32, 256));
          if (::testing::Test::HasFatalFailure()) return;
        }
}

}  // namespace
}  // namespace pleat::kernels::testing
