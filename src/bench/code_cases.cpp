// Products of codes of recipe fp8, and what makes the codes, in the shapes of the models' micro-batches.
#include "bench/case_shapes.h"
#include "tensor/recipe.h"

namespace pleat::bench {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

constexpr Dtype kC = Dtype::E4M3;
constexpr tensor::Recipe kFp8 = tensor::recipe_of(tensor::RecipeId::Fp8);

int64_t blocks(int64_t n) { return base::ceil_div(n, kFp8.block); }
const program::AttrSet kRecipe = {{"recipe", 1}};

// Codes of rows or columns with their scales.
struct Coded {
  Argument codes, scale;
};
Coded row_codes(int64_t rows, int64_t n) { return {in(kC, {rows, n}), in(kF, {rows, blocks(n)})}; }
Coded column_codes(int64_t room, int64_t n) { return {in(kC, {room, n}), in(kF, {room / kFp8.block, n})}; }
Argument made(Argument a) {
  a.access = program::Access::Write;
  return a;
}

struct Product {
  std::string name;
  int64_t rows, experts, in, out;  // experts 0: one matrix
  std::vector<double> offsets;
};

void add_product(CaseList& all, const Product& p) {
  const bool grouped = p.experts > 0;
  const KernelKind kind = grouped ? KernelKind::scaled_grouped_linear : KernelKind::scaled_linear;
  const double flops = 2.0 * double(p.rows) * double(p.in) * double(p.out);
  const auto with_offsets = [&](std::vector<Argument> args, Argument last, bool forward) {
    if (grouped)
      args.push_back(in(Dtype::I32, {p.experts + 1}, p.offsets));
    else if (forward)
      args.push_back(none()), args.push_back(none());
    args.push_back(std::move(last));
    return args;
  };
  const auto weight = [&](int64_t out, int64_t in_) {
    return grouped ? Coded{in(kC, {p.experts, out, in_}), in(kF, {p.experts, blocks(out), blocks(in_)})}
                   : Coded{in(kC, {out, in_}), in(kF, {blocks(out), blocks(in_)})};
  };
  const auto by_rows = [&](const char* what, Phase phase, int64_t from, int64_t to) {
    const Coded x = row_codes(p.rows, from), w = weight(to, from);
    all.push_back(
        {"scaled", p.name + what, kind, phase,
         with_offsets({x.codes, x.scale, w.codes, w.scale}, out(kB, {p.rows, to}), phase == Phase::Forward),
         kRecipe, flops, 0});
  };
  by_rows(" fwd", Phase::Forward, p.in, p.out);
  by_rows(" dgrad", Phase::BackwardInput, p.out, p.in);
  const int64_t room = tensor::column_rows(kFp8, p.rows, p.experts);
  const Coded dy = column_codes(room, p.out), x = column_codes(room, p.in);
  const std::vector<int64_t> shape =
      grouped ? std::vector<int64_t>{p.experts, p.out, p.in} : std::vector<int64_t>{p.out, p.in};
  for (const Dtype grad : {kB, kF})
    for (const bool adds : {false, true})
      all.push_back({"scaled", p.name + " wgrad" + (grad == kF ? " f32" : "") + (adds ? " add" : ""), kind,
                     Phase::BackwardWeight,
                     with_offsets({dy.codes, dy.scale, x.codes, x.scale},
                                  adds ? update(grad, shape) : out(grad, shape), false),
                     kRecipe, flops, 0});
}

void add_streams_of_codes(CaseList& all, const Model& m) {
  const std::string base = std::string(m.name) + " ";
  const int64_t T = m.tokens, R = T * m.top_k, h = m.hidden, E = m.experts, f = m.ffn;
  const double th = double(T) * double(h), rf = double(R) * double(f), rh = double(R) * double(h),
               w = double(E) * double(f) * 2 * double(h);
  const auto add = [&](const std::string& name, KernelKind kind, Phase phase, std::vector<Argument> args,
                       double bytes, program::AttrSet attrs = kRecipe) {
    all.push_back({"codes", base + name, kind, phase, std::move(args), std::move(attrs), 0, bytes});
  };
  const Argument counts = update(Dtype::I64, {4}), largest = update(kD, {1});
  const Coded tokens = row_codes(T, h), rows = row_codes(R, f), wide = row_codes(R, h);
  add("quantize tokens", KernelKind::quantize, Phase::Forward,
      {in(kB, {T, h}), none(), none(), none(), made(tokens.codes), made(tokens.scale), none(), none(), counts,
       largest},
      3 * th + th / 32);
  const Routing routing = routing_of(m, T, Load::Random);
  const Argument offsets = in(Dtype::I32, {E + 1}, routing.offsets);
  add("quantize rows of experts", KernelKind::quantize, Phase::Forward,
      {in(kB, {R, f}), offsets, none(), none(), made(rows.codes), made(rows.scale), none(), none(), counts,
       largest},
      3 * rf + rf / 32);
  add("permute_codes fwd", KernelKind::permute_codes, Phase::Forward,
      {tokens.codes, tokens.scale, in(kF, {T, m.top_k}), offsets, in(Dtype::I32, {R}, routing.row_token),
       in(Dtype::I32, {R}, routing.row_slot), made(wide.codes), made(wide.scale), out(kF, {R})},
      th + rh);
  const Coded columns = column_codes(tensor::column_rows(kFp8, R, E), h);
  add("turn_codes", KernelKind::turn_codes, Phase::BackwardWeight,
      {wide.codes, wide.scale, offsets, made(columns.codes), made(columns.scale)}, 2 * rh + rh / 16);
  const auto weight = [&](int64_t out, int64_t in_) {
    return Coded{made(in(kC, {E, out, in_})), made(in(kF, {E, blocks(out), blocks(in_)}))};
  };
  const Coded plain = weight(2 * f, h), turned = weight(h, 2 * f);
  add("quantize_weight", KernelKind::quantize_weight, Phase::Forward,
      {in(kB, {E, 2 * f, h}), none(), plain.codes, plain.scale, counts, largest}, 3 * w,
      {{"recipe", 1}, {"turned", 0}});
  add("quantize_weight turned", KernelKind::quantize_weight, Phase::BackwardInput,
      {in(kB, {E, 2 * f, h}), turned.codes, turned.scale}, 3 * w, {{"recipe", 1}, {"turned", 1}});
}

}  // namespace

void add_codes(CaseList& all) {
  for (const Model& m : models()) {
    const Routing routing = routing_of(m, m.tokens, Load::Random);
    const int64_t R = m.tokens * m.top_k;
    add_product(all, {std::string(m.name) + " w13", R, m.experts, m.hidden, 2 * m.ffn, routing.offsets});
    add_product(all, {std::string(m.name) + " w2", R, m.experts, m.ffn, m.hidden, routing.offsets});
    add_product(all, {std::string(m.name) + " out", m.tokens, 0, m.heads * m.v_dim, m.hidden, {}});
    add_streams_of_codes(all, m);
  }
}

}  // namespace pleat::bench
