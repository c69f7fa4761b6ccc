// What the benchmark's cases are made of: the models the peers train, arguments, and rows routed to experts.
#pragma once

#include "bench/kernel_bench.h"

namespace pleat::bench {

inline constexpr tensor::Dtype kB = tensor::Dtype::BF16, kF = tensor::Dtype::F32, kD = tensor::Dtype::F64,
                               kI = tensor::Dtype::I32;

struct Model {
  const char* name;
  int64_t tokens, hidden, experts, top_k, ffn, heads, kv_heads, head_dim, v_dim,
      vocab;  // tokens: of a micro-batch
  enum class Norm { None, Head, Full } qk_norm;

  bool latent() const { return v_dim != head_dim; }
  int64_t packed() const { return (heads + kv_heads) * head_dim + kv_heads * v_dim; }
};
std::span<const Model> models();
// A small, the model's own and a large micro-batch.
std::vector<int64_t> token_counts(const Model& m);

Argument in(tensor::Dtype dtype, std::vector<int64_t> shape, std::vector<double> numbers = {});
Argument out(tensor::Dtype dtype, std::vector<int64_t> shape);
Argument update(tensor::Dtype dtype, std::vector<int64_t> shape);
Argument none();

enum class Load { Even, Random, Skewed, Uneven };

// The plan dispatch_plan makes: rows by (expert, token). Random: tokens choose the top k of noise with a
// small bias per expert, and all of it is there. Even: every expert the same number; skewed: expert 0 gets
// four times the mean, the others share the rest; uneven: as a router that nothing balances has it, sizes
// spread log-normally, the largest several times the mean. Offsets alone.
struct Routing {
  std::vector<double> offsets, idx, row_token, row_slot, token_row;
};
Routing routing_of(const Model& m, int64_t tokens, Load load);

// Keeps the cases whose group or name contains the filter.
class CaseList {
 public:
  explicit CaseList(std::string filter) : filter_(std::move(filter)) {}
  void push_back(KernelCase c) {
    if ((c.group + " " + c.name).find(filter_) != std::string::npos) cases_.push_back(std::move(c));
  }
  std::vector<KernelCase> take() { return std::move(cases_); }

 private:
  std::string filter_;
  std::vector<KernelCase> cases_;
};

// Attention (attention_cases.cpp).
void add_attention(CaseList& all);
// Kernels bound by memory: around attention and experts (stream_cases.cpp), of the head and the optimizer
// (loss_cases.cpp), of the router and of rows that move (routing_cases.cpp).
void add_streams(CaseList& all);
void add_losses(CaseList& all);
void add_routing(CaseList& all);
// Codes of few bits and their products (code_cases.cpp).
void add_codes(CaseList& all);
// Rows through windows of other ranks (window_cases.cpp).
void add_windows(CaseList& all);

}  // namespace pleat::bench
