// The shapes: micro-batches of the four models the peers train.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "bench/kernel_bench.h"

namespace pleat::bench {
namespace {

using program::Access;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Model {
  const char* name;
  int64_t tokens, hidden, experts, top_k, ffn, heads, kv_heads, head_dim, v_dim, vocab;
};
const Model kModels[] = {
    {"mixtral", 8192, 4096, 8, 2, 14336, 32, 8, 128, 128, 32000},
    {"deepseek-v3", 8192, 7168, 32, 8, 2048, 128, 128, 192, 128, 32768},
    {"qwen3-30b-a3b", 16384, 2048, 128, 8, 768, 32, 4, 128, 128, 32768},
    {"olmoe-1b-7b", 4096, 2048, 64, 8, 1024, 16, 16, 128, 128, 50304},
};

Argument in(Dtype dtype, std::vector<int64_t> shape, std::vector<double> numbers = {}) {
  return {dtype, std::move(shape), Access::Read, std::move(numbers), true};
}
Argument out(Dtype dtype, std::vector<int64_t> shape) {
  return {dtype, std::move(shape), Access::Write, {}, true};
}
Argument update(Dtype dtype, std::vector<int64_t> shape) {
  return {dtype, std::move(shape), Access::Update, {}, true};
}
Argument none() { return {Dtype::BF16, {0}, Access::Read, {}, false}; }

enum class Load { Even, Random, Skewed };
constexpr std::pair<Load, const char*> kLoads[] = {
    {Load::Even, "even"}, {Load::Random, "random"}, {Load::Skewed, "skewed"}};

// Rows per expert. Random: tokens choose the top k of noise with a small bias per expert. Skewed: expert 0
// gets four times the mean, the others share the rest.
std::vector<int64_t> rows_of(const Model& m, Load load) {
  const int64_t rows = m.tokens * m.top_k;
  std::vector<int64_t> count(static_cast<size_t>(m.experts), rows / m.experts);
  if (load == Load::Random) {
    std::fill(count.begin(), count.end(), 0);
    const base::RandomStream random(3, base::RandomUse::Test, 0, 0);
    std::vector<double> bias(static_cast<size_t>(m.experts));
    for (size_t e = 0; e < bias.size(); ++e) bias[e] = 0.3 * random.normal(e);
    std::vector<std::pair<double, size_t>> score(bias.size());
    for (int64_t t = 0; t < m.tokens; ++t) {
      for (size_t e = 0; e < bias.size(); ++e)
        score[e] = {-(bias[e] + random.normal(static_cast<uint64_t>((t + 1) * m.experts) + e)), e};
      std::partial_sort(score.begin(), score.begin() + m.top_k, score.end());
      for (int64_t k = 0; k < m.top_k; ++k) ++count[score[static_cast<size_t>(k)].second];
    }
  } else if (load == Load::Skewed) {
    const int64_t most = std::min(m.tokens, 4 * rows / m.experts), rest = (rows - most) / (m.experts - 1);
    std::fill(count.begin(), count.end(), rest);
    count[0] = most;
  }
  count.back() += rows - std::accumulate(count.begin(), count.end(), int64_t{0});
  return count;
}

std::vector<double> offsets_of(const std::vector<int64_t>& rows) {
  std::vector<double> at = {0};
  for (int64_t n : rows) at.push_back(at.back() + static_cast<double>(n));
  return at;
}

void add_grouped(std::vector<KernelCase>& all) {
  for (const Model& m : kModels)
    for (const auto& [load, load_name] : kLoads) {
      const std::vector<int64_t> rows = rows_of(m, load);
      for (const auto& [name, width_in, width_out] :
           {std::tuple{"w13", m.hidden, 2 * m.ffn}, std::tuple{"w2", m.ffn, m.hidden}}) {
        const std::string base = std::string(m.name) + " " + name + " " + load_name;
        all.push_back(grouped_case({base + " fwd", width_in, width_out, rows, Phase::Forward}));
        all.push_back(grouped_case({base + " dgrad", width_in, width_out, rows, Phase::BackwardInput}));
        for (Dtype grad : {Dtype::BF16, Dtype::F32})
          for (bool add : {false, true}) {
            if (load != Load::Random && (grad == Dtype::F32 || add)) continue;
            all.push_back(
                grouped_case({base + " wgrad" + (grad == Dtype::F32 ? " f32" : "") + (add ? " add" : ""),
                              width_in, width_out, rows, Phase::BackwardWeight, grad, add}));
          }
      }
    }
}

void add_linear(std::vector<KernelCase>& all) {
  for (const Model& m : kModels) {
    struct Product {
      const char* name;
      int64_t rows, in, out;
    };
    std::vector<Product> products = {{"head", 4096, m.hidden, m.vocab}};
    if (m.v_dim != m.head_dim) {
      products.push_back({"q_up", m.tokens, 1536, m.heads * m.head_dim});
      products.push_back({"kv_up", m.tokens, 512, m.heads * 256});
      products.push_back({"out", m.tokens, m.heads * m.v_dim, m.hidden});
      products.push_back({"shared_up", m.tokens, m.hidden, 4096});
    } else {
      products.push_back({"qkv", m.tokens, m.hidden, (m.heads + 2 * m.kv_heads) * m.head_dim});
      products.push_back({"out", m.tokens, m.heads * m.v_dim, m.hidden});
    }
    for (const Product& p : products) {
      const double flops = 2.0 * double(p.rows) * double(p.in) * double(p.out);
      const std::string base = std::string(m.name) + " " + p.name;
      all.push_back({"linear",
                     base + " fwd",
                     KernelKind::linear,
                     Phase::Forward,
                     {in(Dtype::BF16, {p.rows, p.in}), in(Dtype::BF16, {p.out, p.in}), none(), none(),
                      out(Dtype::BF16, {p.rows, p.out})},
                     {},
                     flops,
                     0});
      all.push_back({"linear",
                     base + " dgrad",
                     KernelKind::linear,
                     Phase::BackwardInput,
                     {in(Dtype::BF16, {p.rows, p.out}), in(Dtype::BF16, {p.out, p.in}),
                      out(Dtype::BF16, {p.rows, p.in})},
                     {},
                     flops,
                     0});
      all.push_back({"linear",
                     base + " wgrad",
                     KernelKind::linear,
                     Phase::BackwardWeight,
                     {in(Dtype::BF16, {p.rows, p.out}), in(Dtype::BF16, {p.rows, p.in}),
                      update(Dtype::BF16, {p.out, p.in}), none()},
                     {},
                     flops,
                     0});
    }
  }
}

void add_streams(std::vector<KernelCase>& all) {
  for (const Model& m : kModels) {
    const int64_t T = m.tokens, h = m.hidden, R = T * m.top_k, f = m.ffn;
    const double th = double(T) * double(h), rf = double(R) * double(f);
    const std::string base = m.name;
    all.push_back(
        {"stream",
         base + " rmsnorm fwd",
         KernelKind::rmsnorm,
         Phase::Forward,
         {in(Dtype::BF16, {T, h}), in(Dtype::BF16, {h}), out(Dtype::BF16, {T, h}), out(Dtype::F32, {T})},
         {{"eps", 1e-6}},
         0,
         4 * th});
    all.push_back({"stream",
                   base + " rmsnorm dgrad + residual",
                   KernelKind::rmsnorm,
                   Phase::BackwardInput,
                   {in(Dtype::BF16, {T, h}), in(Dtype::BF16, {T, h}), in(Dtype::BF16, {h}),
                    in(Dtype::F32, {T}), in(Dtype::BF16, {T, h}), out(Dtype::BF16, {T, h})},
                   {{"eps", 1e-6}},
                   0,
                   8 * th});
    all.push_back(
        {"stream",
         base + " rmsnorm wgrad",
         KernelKind::rmsnorm,
         Phase::BackwardWeight,
         {in(Dtype::BF16, {T, h}), in(Dtype::BF16, {T, h}), in(Dtype::F32, {T}), update(Dtype::BF16, {h})},
         {},
         0,
         4 * th});
    const Argument at = in(Dtype::I32, {m.experts + 1}, offsets_of(rows_of(m, Load::Random)));
    all.push_back({"stream",
                   base + " expert_swiglu fwd",
                   KernelKind::expert_swiglu,
                   Phase::Forward,
                   {in(Dtype::BF16, {R, 2 * f}), in(Dtype::F32, {R}), at, out(Dtype::BF16, {R, f})},
                   {{"activation", 0}},
                   0,
                   6 * rf});
    all.push_back({"stream",
                   base + " expert_swiglu bwd",
                   KernelKind::expert_swiglu,
                   Phase::BackwardInput,
                   {in(Dtype::BF16, {R, f}), in(Dtype::BF16, {R, 2 * f}), in(Dtype::F32, {R}), at,
                    out(Dtype::BF16, {R, 2 * f}), out(Dtype::F32, {R})},
                   {{"activation", 0}},
                   0,
                   10 * rf});
    // Every token's rows spread over the experts: row r of the sorted order belongs to token r mod T.
    std::vector<double> row_token(static_cast<size_t>(R)), row_slot(row_token.size()),
        token_row(row_token.size());
    for (int64_t r = 0; r < R; ++r) {
      const int64_t token = (r * 7919) % T;
      row_token[static_cast<size_t>(r)] = double(token);
      row_slot[static_cast<size_t>(r)] = double(r / T);
      token_row[static_cast<size_t>(token * m.top_k + r / T)] = double(r);
    }
    const double rh = double(R) * double(h);
    all.push_back({"gather",
                   base + " permute fwd",
                   KernelKind::permute,
                   Phase::Forward,
                   {in(Dtype::BF16, {T, h}), in(Dtype::F32, {T, m.top_k}), at, in(Dtype::I32, {R}, row_token),
                    in(Dtype::I32, {R}, row_slot), out(Dtype::BF16, {R, h}), out(Dtype::F32, {R})},
                   {},
                   0,
                   2 * rh + 2 * th});
    all.push_back({"gather",
                   base + " permute bwd",
                   KernelKind::permute,
                   Phase::BackwardInput,
                   {in(Dtype::BF16, {R, h}), in(Dtype::F32, {R}), in(Dtype::I32, {T, m.top_k}, token_row),
                    out(Dtype::BF16, {T, h}), out(Dtype::F32, {T, m.top_k})},
                   {},
                   0,
                   2 * rh + 2 * th});
    all.push_back({"gather",
                   base + " combine fwd + residual",
                   KernelKind::combine,
                   Phase::Forward,
                   {in(Dtype::BF16, {R, h}), in(Dtype::I32, {T, m.top_k}, token_row), in(Dtype::BF16, {T, h}),
                    none(), out(Dtype::BF16, {T, h})},
                   {},
                   0,
                   2 * rh + 4 * th});
    all.push_back({"gather",
                   base + " combine bwd",
                   KernelKind::combine,
                   Phase::BackwardInput,
                   {in(Dtype::BF16, {T, h}), in(Dtype::I32, {R}, row_token), at, out(Dtype::BF16, {R, h})},
                   {},
                   0,
                   2 * rh + 2 * th});
    const int64_t chunk = 4096, V = m.vocab;
    std::vector<double> labels(static_cast<size_t>(chunk));
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = double((i * 7919) % static_cast<size_t>(V));
    all.push_back({"stream",
                   base + " cross_entropy bwd",
                   KernelKind::cross_entropy,
                   Phase::BackwardInput,
                   {in(Dtype::I32, {chunk}, labels), in(Dtype::U8, {chunk}, {1}), in(Dtype::F64, {4}, {1e-4}),
                    update(Dtype::BF16, {chunk, V}), out(Dtype::F64, {2})},
                   {},
                   0,
                   4 * double(chunk) * double(V)});
  }
  const int64_t n = int64_t{1} << 28;
  all.push_back({"stream",
                 "grad_norm bf16",
                 KernelKind::grad_norm,
                 Phase::Update,
                 {in(Dtype::BF16, {n}), none(), out(Dtype::F64, {n / 65536})},
                 {},
                 0,
                 2 * double(n)});
  all.push_back({"stream",
                 "adamw bf16 gradient",
                 KernelKind::adamw,
                 Phase::Update,
                 {in(Dtype::BF16, {n}), in(Dtype::F64, {4}, {1e-4, 1, 0, 0}), in(Dtype::F64, {2}, {1, 1}),
                  in(Dtype::I32, {1}, {1}), none(), update(Dtype::F32, {n}), update(Dtype::F32, {n}),
                  Argument{Dtype::F32, {n}, Access::Update, {0.01}, true}},
                 {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"lr_mult", 1}},
                 0,
                 26 * double(n)});
}

}  // namespace

KernelCase grouped_case(const GroupedProduct& p) {
  const int64_t R = std::accumulate(p.rows_of.begin(), p.rows_of.end(), int64_t{0}),
                E = static_cast<int64_t>(p.rows_of.size()), n = p.width_in, m = p.width_out;
  const Argument at = in(Dtype::I32, {E + 1}, offsets_of(p.rows_of));
  KernelCase c;
  c.group = "grouped", c.name = p.name;
  c.kind = KernelKind::grouped_linear, c.phase = p.phase;
  c.flops = 2.0 * double(R) * double(n) * double(m);
  if (p.phase == Phase::Forward)
    c.arguments = {in(Dtype::BF16, {R, n}), in(Dtype::BF16, {E, m, n}), at, none(), none(),
                   out(Dtype::BF16, {R, m})};
  else if (p.phase == Phase::BackwardInput)
    c.arguments = {
        in(Dtype::BF16, {R, m}), in(Dtype::BF16, {E, m, n}), at, none(), out(Dtype::BF16, {R, n}), none()};
  else
    c.arguments = {in(Dtype::BF16, {R, m}),
                   in(Dtype::BF16, {R, n}),
                   at,
                   none(),
                   p.add ? update(p.gradient, {E, m, n}) : out(p.gradient, {E, m, n}),
                   none()};
  return c;
}

std::vector<KernelCase> kernel_cases(const std::string& filter) {
  std::vector<KernelCase> all;
  add_grouped(all);
  add_linear(all);
  add_streams(all);
  std::erase_if(
      all, [&](const KernelCase& c) { return (c.group + " " + c.name).find(filter) == std::string::npos; });
  return all;
}

}  // namespace pleat::bench
