// Multi-token prediction as an objective: depth 1 against a forward written out here, documents apart,
// microbatches together, recompute and freeze on top.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/decoder.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

using Matrix = std::vector<std::vector<double>>;

config::Config mtp_config(const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"model.init_std=0.3", "model.num_mtp_layers=1",
                                   "model.moe_layer_freq=[1,0]", "model.ffn_hidden_size=10",
                                   "train.mtp_loss_factor=0.5"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_config("", sets);
}

// Documents of 3, 4 and 2 tokens in every sequence of nine; the label behind the sequence is known.
constexpr int64_t kDocument[] = {0, 0, 0, 1, 1, 1, 1, 2, 2};

void write_documents(interpret::Executor& e, const config::Config& c, int64_t step) {
  write_random_batch(e, c, step);
  const int64_t L = c.train.seq_len;
  for (int mb = 0; mb < c.train.num_microbatches; ++mb)
    for (int64_t t = 0; t < c.train.micro_batch * L; ++t) {
      const auto at = [&]<class T>(const char* what, T) {
        return static_cast<T*>(e.data(fmt::format("mb{}.{}", mb, what)));
      };
      const int64_t j = t % L, row = t - j;
      int64_t start = j;
      while (start > 0 && kDocument[start - 1] == kDocument[j]) --start;
      at("doc_start", int32_t{})[t] = static_cast<int32_t>(row + start);
      at("positions", int32_t{})[t] = static_cast<int32_t>(j - start);
      at("loss_mask", uint8_t{})[t] = j + 1 == L || kDocument[j + 1] == kDocument[j];
      if (j + 1 == L) at("labels", int32_t{})[t] = 5;
    }
}

Matrix matrix(interpret::Executor& e, const std::string& name, int64_t rows, int64_t columns) {
  const double* data = static_cast<const double*>(e.data(name));
  Matrix out(static_cast<size_t>(rows));
  for (size_t i = 0; i < out.size(); ++i)
    out[i].assign(data + int64_t(i) * columns, data + (int64_t(i) + 1) * columns);
  return out;
}

std::vector<double> norm(const std::vector<double>& x, const std::vector<double>& w, double eps) {
  double square = 0;
  for (double v : x) square += v * v;
  std::vector<double> out(x);
  for (size_t i = 0; i < x.size(); ++i) out[i] *= w[i] / std::sqrt(square / double(x.size()) + eps);
  return out;
}

std::vector<double> times(const Matrix& w, const std::vector<double>& x) {
  std::vector<double> out;
  for (const auto& row : w) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += row[i] * x[i];
    out.push_back(sum);
  }
  return out;
}

void rotate(double* head, int64_t width, int64_t position, double theta) {
  for (int64_t i = 0; i < width / 2; ++i) {
    const double angle = double(position) * std::pow(theta, -2.0 * double(i) / double(width));
    const double a = head[i], b = head[i + width / 2];
    head[i] = a * std::cos(angle) - b * std::sin(angle);
    head[i + width / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
}

// Sum and count of the loss of depth 1, from the final norm's output and the weights
// alone.
std::pair<double, int64_t> loss_by_hand(const config::Config& c, interpret::Executor& e,
                                        const std::vector<int32_t>& tokens) {
  const auto& m = c.model;
  const int64_t h = m.hidden_size, d = m.head_dim, H = m.num_heads, G = m.num_kv_heads, L = c.train.seq_len,
                f = m.ffn_hidden_size, n = c.train.micro_batch * L;
  const auto weight = [&](const char* name, int64_t rows, int64_t columns) {
    return matrix(e, fmt::format("layers.2.{}", name), rows, columns);
  };
  const auto row = [&](const char* name) { return weight(name, 1, h)[0]; };
  const Matrix embedding = matrix(e, "embedding.weight", m.vocab_size, h),
               head = matrix(e, "head.weight", m.vocab_size, h), hidden = matrix(e, "mb0.final_normed", n, h),
               left = weight("mtp.embed_proj.weight", h, h), right = weight("mtp.hidden_proj.weight", h, h),
               qkv = weight("attn.qkv.weight", (H + 2 * G) * d, h), out = weight("attn.out.weight", h, H * d),
               up = weight("mlp.up.weight", 2 * f, h), down = weight("mlp.down.weight", h, f);
  double sum = 0;
  int64_t counted = 0;
  for (int64_t first = 0; first < n; first += L) {
    Matrix x, packed;
    for (int64_t j = 0; j < L; ++j) {
      // Past the end of its document a row sees its own token; nothing that counts depends on it.
      const bool inside = j + 1 < L && kDocument[j + 1] == kDocument[j];
      std::vector<double> joined = norm(embedding[size_t(tokens[size_t(first + j + inside)])],
                                        row("mtp.embed_norm.weight"), m.norm_eps);
      const auto second = norm(hidden[size_t(first + j)], row("mtp.hidden_norm.weight"), m.norm_eps);
      joined.insert(joined.end(), second.begin(), second.end());
      Matrix both = left;
      for (size_t i = 0; i < both.size(); ++i)
        both[i].insert(both[i].end(), right[i].begin(), right[i].end());
      x.push_back(times(both, joined));
      packed.push_back(times(qkv, norm(x.back(), row("attn_norm.weight"), m.norm_eps)));
      int64_t position = 0;
      while (j - position > 0 && kDocument[j - position - 1] == kDocument[j]) ++position;
      for (int64_t i = 0; i < H + G; ++i) rotate(packed.back().data() + i * d, d, position, m.rope_theta);
    }
    for (int64_t j = 0; j < L; ++j) {
      std::vector<double> attended(size_t(H * d));
      for (int64_t i = 0; i < H; ++i) {
        const double* q = packed[size_t(j)].data() + i * d;
        const int64_t group = i / (H / G);
        double total = 0;
        std::vector<double> mixed(size_t(d), 0.0);
        for (int64_t s = 0; s <= j; ++s) {
          if (kDocument[s] != kDocument[j]) continue;
          const double *k = packed[size_t(s)].data() + (H + group) * d, *v = k + G * d;
          double score = 0;
          for (int64_t p = 0; p < d; ++p) score += q[p] * k[p];
          const double share = std::exp(score / std::sqrt(double(d)));
          total += share;
          for (int64_t p = 0; p < d; ++p) mixed[size_t(p)] += share * v[p];
        }
        for (int64_t p = 0; p < d; ++p) attended[size_t(i * d + p)] = mixed[size_t(p)] / total;
      }
      std::vector<double> y = times(out, attended);
      for (int64_t i = 0; i < h; ++i) y[size_t(i)] += x[size_t(j)][size_t(i)];
      const std::vector<double> gate_up = times(up, norm(y, row("mlp_norm.weight"), m.norm_eps));
      std::vector<double> activated;
      for (int64_t i = 0; i < f; ++i)
        activated.push_back(gate_up[size_t(i)] / (1 + std::exp(-gate_up[size_t(i)])) *
                            gate_up[size_t(f + i)]);
      const std::vector<double> added = times(down, activated);
      for (int64_t i = 0; i < h; ++i) y[size_t(i)] += added[size_t(i)];
      // Token j + 2 must belong to the document; behind the sequence one more is known as a label.
      if (j + 1 >= L || kDocument[j + 1] != kDocument[j]) continue;
      if (j + 2 < L && kDocument[j + 2] != kDocument[j]) continue;
      const int32_t label = j + 2 < L ? tokens[size_t(first + j + 2)] : 5;
      const std::vector<double> logits = times(head, norm(y, row("mtp.final_norm.weight"), m.norm_eps));
      double total = 0;
      for (double v : logits) total += std::exp(v);
      sum += std::log(total) - logits[size_t(label)];
      ++counted;
    }
  }
  return {sum, counted};
}

std::unique_ptr<runtime::Programs> initialized(const config::Config& c) {
  auto programs = std::make_unique<runtime::Programs>(c, train_only());
  programs->initialize();
  return programs;
}

}  // namespace

TEST(Mtp, LossOfDepthOneIsTheOneWrittenOut) {
  const config::Config c = mtp_config({"train.num_microbatches=1"});
  const auto programs = initialized(c);
  Runtime bound(
      runtime::with_results(runtime::without_update(schedule::build_training_step(c, programs->table())),
                            [](const program::Value& v) { return v.name == "mb0.final_normed"; }),
      2);
  copy_state(*programs, bound);
  write_documents(bound.executor(), c, 1);
  // Inputs may be overwritten once they are dead.
  const auto* input = static_cast<const int32_t*>(bound.executor().data("mb0.tokens"));
  const std::vector<int32_t> tokens(input, input + c.train.micro_batch * c.train.seq_len);
  bound.executor().run();
  const auto* loss = static_cast<const double*>(bound.executor().data("L2.mtp_loss"));
  const double sum = loss[0], count = loss[1];
  const auto [expected, expected_count] = loss_by_hand(c, bound.executor(), tokens);
  // Documents of 3 and 4 predict 1 and 2 tokens; the last one, of 2, has one more label behind it.
  EXPECT_EQ(expected_count, 2 * (1 + 2 + 1));
  EXPECT_EQ(count, double(expected_count));
  EXPECT_NEAR(sum, expected, 1e-11 * expected);
}

// Two documents never touch: other tokens in one leave the loss of the rest as it is, but for its last places: the rows
// of the rest stand elsewhere among an expert's rows, and BLAS may sum a row in another order there.
TEST(Mtp, NothingCrossesADocument) {
  const config::Config c = mtp_config({"train.num_microbatches=1", "train.micro_batch=1",
                                       "model.num_mtp_layers=2", "moe.load_balancing=[\"none\"]"});
  const auto programs = initialized(c);
  const auto gradient = [&](int32_t first_token) {
    Runtime bound(
        with_gradients_kept(runtime::without_update(schedule::build_training_step(c, programs->table()))), 2);
    copy_state(*programs, bound);
    write_documents(bound.executor(), c, 1);
    auto* tokens = static_cast<int32_t*>(bound.executor().data("mb0.tokens"));
    auto* mask = static_cast<uint8_t*>(bound.executor().data("mb0.loss_mask"));
    for (int j = 0; j < 3; ++j) tokens[j] = first_token, mask[j] = 0;
    bound.executor().run();
    return gradients(bound.program(), bound.executor()).at("layers.2.mtp.embed_proj.weight.grad");
  };
  const auto one = gradient(1), two = gradient(2);
  const auto number = [](const auto& bytes, size_t i) {
    double out;
    std::memcpy(&out, &bytes[i * sizeof out], sizeof out);
    return out;
  };
  ASSERT_EQ(one.size(), two.size());
  double largest = 0, apart = 0;
  for (size_t i = 0; i < one.size() / sizeof(double); ++i) {
    largest = std::max(largest, std::abs(number(one, i)));
    apart = std::max(apart, std::abs(number(one, i) - number(two, i)));
  }
  EXPECT_GT(largest, 0);
  EXPECT_LT(apart, 1e-13 * largest);
}

// The mean is over the whole step: splitting it into microbatches changes only the order of sums.
TEST(Mtp, MicrobatchesAddUpToOneBatch) {
  const config::Config two = mtp_config({"model.num_mtp_layers=2", "moe.load_balancing=[\"none\"]"});
  const config::Config one = mtp_config({"model.num_mtp_layers=2", "moe.load_balancing=[\"none\"]",
                                         "train.num_microbatches=1", "train.micro_batch=4"});
  const auto programs = initialized(two);
  const auto run = [&](const config::Config& c) {
    Runtime bound(
        with_gradients_kept(runtime::without_update(schedule::build_training_step(c, programs->table()))), 2);
    copy_state(*programs, bound);
    write_documents(bound.executor(), c, 1);
    bound.executor().run();
    return gradients(bound.program(), bound.executor());
  };
  const Snapshot a = run(two), b = run(one);
  for (const auto& [name, bytes] : a) {
    const auto* x = reinterpret_cast<const double*>(bytes.data());
    const auto* y = reinterpret_cast<const double*>(b.at(name).data());
    double difference = 0, scale = 0;
    for (size_t i = 0; i < bytes.size() / sizeof(double); ++i)
      difference += (x[i] - y[i]) * (x[i] - y[i]), scale += y[i] * y[i];
    EXPECT_LE(std::sqrt(difference), 1e-12 * std::sqrt(scale) + 1e-15) << name;
  }
}

TEST(Mtp, RecomputeIsExactAndFreezeKeeps) {
  const std::vector<std::string> base = {"model.dtype=\"float32\"", "model.num_mtp_layers=2",
                                         "model.moe_layer_freq=1",  "moe.shared_ffn_hidden_size=6",
                                         "moe.score=\"sigmoid\"",   "moe.load_balancing=[\"aux\",\"bias\"]",
                                         "model.ffn_hidden_size="};
  const auto run = [&](const std::string& more) {
    std::vector<std::string> sets = base;
    if (!more.empty()) sets.push_back(more);
    const config::Config c = mtp_config(sets);
    const auto programs = initialized(c);
    for (int step = 1; step <= 3; ++step) {
      write_documents(programs->train(), c, step);
      programs->train().run();
    }
    return snapshot(*programs);
  };
  const Snapshot plain = run("");
  EXPECT_EQ(plain, run("recompute.modules=[\"layer\"]"));
  EXPECT_EQ(plain, run("recompute.modules=[\"norm\",\"experts\"]"));
  const Snapshot start = [&] { return snapshot(*initialized(mtp_config(base))); }();
  const Snapshot frozen = run("optimizer.freeze=[\"mtp\",\"embedding\"]");
  for (const char* name :
       {"layers.2.mtp.embed_proj.weight", "layers.3.mtp.hidden_proj.weight", "embedding.weight"})
    EXPECT_EQ(frozen.at(name), start.at(name)) << name;
  for (const char* name : {"layers.3.mtp.embed_norm.weight", "layers.2.experts.up.weight",
                           "layers.0.attn.qkv.weight", "layers.3.router.expert_bias"})
    EXPECT_NE(frozen.at(name), start.at(name)) << name;
}

}  // namespace pleat::train::testing
