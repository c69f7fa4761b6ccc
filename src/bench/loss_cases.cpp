// The head's loss, the embedding and the optimizer. Bytes: every input once, every output once.
#include <fmt/format.h>

#include <set>

#include "bench/case_shapes.h"

namespace pleat::bench {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

// A chunk of rows over the whole vocabulary, and over one of two pieces of it.
void add_loss(CaseList& all, const std::string& base, int64_t rows, int64_t vocabulary) {
  std::vector<double> labels(static_cast<size_t>(rows));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = double((i * 7919) % static_cast<size_t>(vocabulary));
  const double logits = double(rows) * double(vocabulary);
  const Argument label = in(kI, {rows}, labels), mask = in(Dtype::U8, {rows}, {1}),
                 norm = in(kD, {4}, {1e-4}), loss = out(kD, {2}),
                 coords = in(Dtype::I64, {program::kNumGroups}, {0});
  const auto add = [&](const char* name, KernelKind kind, Phase phase, std::vector<Argument> arguments,
                       const program::AttrSet& attrs, double bytes) {
    all.push_back({"stream", base + " " + name, kind, phase, std::move(arguments), attrs, 0, bytes});
  };
  add("cross_entropy fwd", KernelKind::cross_entropy, Phase::Forward,
      {in(kB, {rows, vocabulary}), label, mask, loss, none()}, {}, 2 * logits);
  add("cross_entropy bwd", KernelKind::cross_entropy, Phase::BackwardInput,
      {label, mask, norm, update(kB, {rows, vocabulary}), loss}, {}, 4 * logits);
  add("token_score", KernelKind::token_score, Phase::Forward,
      {in(kB, {rows, vocabulary}), label, mask, out(kD, {rows}), out(kI, {rows})}, {}, 2 * logits);
  const int64_t piece = vocabulary / 2;
  const program::AttrSet pieces = {{"group", 0}, {"vocabulary", double(vocabulary)}};
  add("vocab_stats", KernelKind::vocab_stats, Phase::Forward,
      {in(kB, {rows, piece}), label, mask, coords, out(kD, {rows, 3})}, pieces, logits);
  add("vocab_loss bwd", KernelKind::vocab_loss, Phase::BackwardInput,
      {in(kD, {2, rows, 3}, {1}), label, mask, norm, coords, update(kB, {rows, piece}), loss}, pieces,
      2 * logits);
}

void add_embedding(CaseList& all, const Model& m, const std::string& base, int64_t T) {
  std::vector<double> tokens(static_cast<size_t>(T));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = double((i * i + 7919 * i) % static_cast<size_t>(m.vocab));
  const int64_t h = m.hidden, V = m.vocab;
  const double distinct = double(std::set<double>(tokens.begin(), tokens.end()).size());
  const double wide = 2 * double(h);
  const Argument ids = in(kI, {T}, tokens), rows = in(kB, {T, h});
  const auto add = [&](const char* name, Phase phase, std::vector<Argument> arguments, double bytes) {
    all.push_back(
        {"gather", base + " " + name, KernelKind::embedding, phase, std::move(arguments), {}, 0, bytes});
  };
  add("embedding fwd", Phase::Forward, {ids, in(kB, {V, h}), none(), out(kB, {T, h})},
      wide * (distinct + double(T)));
  add("embedding wgrad", Phase::BackwardWeight, {ids, rows, none(), out(kB, {V, h})}, wide * double(T + V));
  add("embedding wgrad add", Phase::BackwardWeight, {ids, rows, none(), update(kB, {V, h})},
      wide * (double(T) + 2 * distinct));
}

// States in few bits. Codes are of numbers as training has them, most of them a few octaves below the largest of the block.
template <class Add>
void add_coded(int64_t n, const Add& add) {
  const program::AttrSet attrs = {{"beta1", 0.9}, {"beta2", 0.95}, {"element", 0},       {"eps", 1e-8},
                                  {"lr_mult", 1}, {"stream", 1},   {"weight_decay", 0.1}};
  const Argument wide = in(kF, {n}), narrow = in(kB, {n}), hyper = in(kD, {4}, {1e-4, 10, 0, 0}),
                 scale = in(kD, {2}, {1, 1}), commit = in(kI, {1}, {1}), rng = in(Dtype::I64, {2}, {1, 10});
  std::vector<double> of_m, of_v;
  for (int i = 0; i < 4099; ++i) {
    const int below = i * 7919 % 61 * (i * 104729 % 61) / 61;  // most near 0
    of_m.push_back(127 - below + (i % 3 == 0 ? 128 : 0)), of_v.push_back(255 - 2 * below);
  }
  const auto with = [](Argument a, std::vector<double> numbers) {
    a.numbers = std::move(numbers);
    return a;
  };
  const std::vector<Argument> codes = {
      with(update(Dtype::U8, {n}), of_m), with(update(kF, {n / 256}), {0.5, 0.25, 1}),
      with(update(Dtype::U8, {n}), of_v), with(update(kF, {n / 256}), {1, 0.5, 0.75})};
  const std::vector<Argument> halves = {update(kB, {n}), with(update(kF, {n}), {0.01})};
  struct Master {
    const char* name;
    std::vector<Argument> rest;
    double bytes;  // of weight and rest
    bool chance;
  };
  for (const Master& m : {Master{"rest16", {update(Dtype::I16, {n})}, 8, false},
                          Master{"rest8", {update(Dtype::U8, {n})}, 6, true}, Master{"no rest", {}, 4, true}})
    for (const bool wide_gradient : {false, true}) {
      std::vector<Argument> arguments = {wide_gradient ? wide : narrow, hyper,  scale,          commit,
                                         m.chance ? rng : none(),       none(), update(kB, {n})};
      arguments.insert(arguments.end(), codes.begin(), codes.end());
      arguments.insert(arguments.end(), m.rest.begin(), m.rest.end());
      add(fmt::format("adamw_coded block8, {}, {} gradient", m.name, wide_gradient ? "f32" : "bf16").c_str(),
          KernelKind::adamw_coded, arguments, attrs, (wide_gradient ? 4 : 2) + m.bytes + 4 + 16.0 / 256);
    }
  std::vector<Argument> arguments = {narrow, hyper, scale, commit, rng, none(), update(kB, {n})};
  arguments.insert(arguments.end(), halves.begin(), halves.end());
  arguments.push_back(update(Dtype::U8, {n}));
  add("adamw_coded bf16 and f32 moments, rest8, bf16 gradient", KernelKind::adamw_coded, arguments, attrs,
      2 + 6 + 4 + 8);
}

void add_optimizer(CaseList& all) {
  const program::AttrSet adam = {
      {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"lr_mult", 1}};
  for (const int64_t n : {int64_t{1} << 22, int64_t{1} << 28}) {
    const std::string size = std::to_string(n >> 20) + "M ";
    const Argument g = in(kB, {n}), w = update(kF, {n}), hyper = in(kD, {4}, {1e-4, 1, 0, 0}),
                   scale = in(kD, {2}, {1, 1}), commit = in(kI, {1}, {1});
    Argument v = w;
    v.numbers = {0.01};
    const auto add = [&](const char* name, KernelKind kind, std::vector<Argument> arguments,
                         const program::AttrSet& attrs, double bytes) {
      all.push_back(
          {"stream", size + name, kind, Phase::Update, std::move(arguments), attrs, 0, bytes * double(n)});
    };
    add("grad_norm bf16", KernelKind::grad_norm, {g, none(), out(kD, {n / 65536})}, {}, 2);
    add("adamw bf16 gradient", KernelKind::adamw, {g, hyper, scale, commit, none(), w, w, v}, adam, 26);
    add("adamw_narrow bf16 gradient", KernelKind::adamw_narrow,
        {g, hyper, scale, commit, none(), update(kB, {n}), w, v, update(Dtype::I16, {n})}, adam, 26);
    add_coded(n, add);
  }
}

}  // namespace

void add_losses(CaseList& all) {
  for (const Model& m : models()) {
    for (int64_t rows : {int64_t{256}, int64_t{4096}})
      add_loss(all, std::string(m.name) + " " + std::to_string(rows), rows, m.vocab);
    for (int64_t T : token_counts(m)) add_embedding(all, m, std::string(m.name) + " " + std::to_string(T), T);
  }
  add_loss(all, "vocabulary of 151936, 4096", 4096, 151936);
  add_optimizer(all);
}

}  // namespace pleat::bench
