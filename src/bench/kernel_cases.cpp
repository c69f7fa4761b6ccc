// Products of experts and dense ones, in the shapes of the models' micro-batches.
#include <numeric>

#include "bench/case_shapes.h"

namespace pleat::bench {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr std::pair<Load, const char*> kLoads[] = {
    {Load::Even, "even"}, {Load::Random, "random"}, {Load::Skewed, "skewed"}, {Load::Uneven, "uneven"}};

std::vector<double> offsets_of(const std::vector<int64_t>& rows) {
  std::vector<double> at = {0};
  for (int64_t n : rows) at.push_back(at.back() + static_cast<double>(n));
  return at;
}

void add_grouped(CaseList& all) {
  for (const Model& m : models())
    for (const auto& [load, load_name] : kLoads) {
      const std::vector<double> offsets = routing_of(m, m.tokens, load).offsets;
      std::vector<int64_t> rows;
      for (size_t e = 0; e + 1 < offsets.size(); ++e)
        rows.push_back(static_cast<int64_t>(offsets[e + 1] - offsets[e]));
      for (const auto& [name, width_in, width_out] :
           {std::tuple{"w13", m.hidden, 2 * m.ffn}, std::tuple{"w2", m.ffn, m.hidden}}) {
        const std::string base = std::string(m.name) + " " + name + " " + load_name;
        all.push_back(grouped_case({base + " fwd", width_in, width_out, rows, Phase::Forward}));
        all.push_back(grouped_case({base + " dgrad", width_in, width_out, rows, Phase::BackwardInput}));
        for (Dtype grad : {Dtype::BF16, Dtype::F32})
          for (bool add : {false, true}) {
            if (load != Load::Random && grad == Dtype::F32) continue;
            if (add && load != Load::Random && load != Load::Uneven) continue;
            all.push_back(
                grouped_case({base + " wgrad" + (grad == Dtype::F32 ? " f32" : "") + (add ? " add" : ""),
                              width_in, width_out, rows, Phase::BackwardWeight, grad, add}));
          }
      }
    }
}

void add_linear(CaseList& all) {
  for (const Model& m : models()) {
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
  CaseList all(filter);
  add_grouped(all);
  add_linear(all);
  add_codes(all);
  add_attention(all);
  add_streams(all);
  add_losses(all);
  add_routing(all);
  add_windows(all);
  return all.take();
}

}  // namespace pleat::bench
