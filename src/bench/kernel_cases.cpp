// Products of experts and dense ones, in the shapes of the models' micro-batches.
#include "bench/case_shapes.h"

namespace pleat::bench {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr std::pair<Load, const char*> kLoads[] = {
    {Load::Even, "even"}, {Load::Random, "random"}, {Load::Skewed, "skewed"}};

void add_grouped(CaseList& all) {
  for (const Model& m : models())
    for (const auto& [load, load_name] : kLoads) {
      const std::vector<double> offsets = routing_of(m, m.tokens, load).offsets;
      const int64_t R = m.tokens * m.top_k, E = m.experts;
      for (const auto& [name, width_in, width_out] :
           {std::tuple{"w13", m.hidden, 2 * m.ffn}, std::tuple{"w2", m.ffn, m.hidden}}) {
        const std::string base = std::string(m.name) + " " + name + " " + load_name;
        const double flops = 2.0 * double(R) * double(width_in) * double(width_out);
        const Argument at = in(Dtype::I32, {E + 1}, offsets);
        const Argument w = in(Dtype::BF16, {E, width_out, width_in});
        all.push_back(
            {"grouped",
             base + " fwd",
             KernelKind::grouped_linear,
             Phase::Forward,
             {in(Dtype::BF16, {R, width_in}), w, at, none(), none(), out(Dtype::BF16, {R, width_out})},
             {},
             flops,
             0});
        all.push_back(
            {"grouped",
             base + " dgrad",
             KernelKind::grouped_linear,
             Phase::BackwardInput,
             {in(Dtype::BF16, {R, width_out}), w, at, none(), out(Dtype::BF16, {R, width_in}), none()},
             {},
             flops,
             0});
        for (Dtype grad : {Dtype::BF16, Dtype::F32})
          for (bool add : {false, true}) {
            if (load != Load::Random && (grad == Dtype::F32 || add)) continue;
            Argument dw = add ? update(grad, {E, width_out, width_in}) : out(grad, {E, width_out, width_in});
            all.push_back(
                {"grouped",
                 base + " wgrad" + (grad == Dtype::F32 ? " f32" : "") + (add ? " add" : ""),
                 KernelKind::grouped_linear,
                 Phase::BackwardWeight,
                 {in(Dtype::BF16, {R, width_out}), in(Dtype::BF16, {R, width_in}), at, none(), dw, none()},
                 {},
                 flops,
                 0});
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

std::vector<KernelCase> kernel_cases(const std::string& filter) {
  CaseList all(filter);
  add_grouped(all);
  add_linear(all);
  add_streams(all);
  add_losses(all);
  add_routing(all);
  return all.take();
}

}  // namespace pleat::bench
