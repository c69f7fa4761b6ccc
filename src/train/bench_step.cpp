#include "train/bench_step.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "cost/flops.h"
#include "device/cpu/gemm_rate.h"
#include "report/metrics.h"
#include "train/feed.h"
#include "train/learning_rate.h"

namespace pleat::train {

config::Config peer_config(const std::string& path, int64_t threads) {
  std::ifstream in(path);
  if (!in) base::fail("cannot open the peer configuration '{}'", path);
  const nlohmann::json j = nlohmann::json::parse(in, nullptr, false);
  if (!j.is_object()) base::fail("'{}' is not a JSON object", path);
  const auto need = [&](const char* key) {
    if (!j.contains(key) || !j[key].is_number_integer())
      base::fail("'{}': key '{}' must be an integer", path, key);
    return j[key].get<int64_t>();
  };
  const std::string qk_norm =
      j.contains("qk_norm") && j["qk_norm"].is_string() ? j["qk_norm"].get<std::string>() : "none";
  if (qk_norm != "none" && qk_norm != "head" && qk_norm != "full")
    base::fail("'{}': qk_norm '{}' is not known; needed null, 'head' or 'full'", path, qk_norm);
  const std::string optimizer = j.value("optimizer", "fp32master");
  if (optimizer != "fp32" && optimizer != "fp32master" && optimizer != "bf16")
    base::fail("'{}': optimizer '{}' is not known; needed 'fp32' (all float32), 'fp32master' or 'bf16'", path,
               optimizer);
  config::Config c;
  // As the peers: weights and activations bf16 with float32 master weights, on the GPU; all float32 on the
  // CPU.
  if (optimizer != "fp32") {
    c.device.kind = "cuda";
    c.model.dtype = "bfloat16";
    c.optimizer.grad_dtype = "bfloat16";
    c.device.deterministic_attention = false;  // as the peers' library runs it
    if (optimizer == "bf16") c.optimizer.moment_dtype = "bfloat16";
  }
  c.model.vocab_size = need("vocab_size");
  c.model.hidden_size = need("hidden_size");
  c.model.num_layers = need("num_layers");
  c.model.num_heads = need("num_heads");
  if (j.contains("mla") && j["mla"].is_object()) {
    const nlohmann::json& m = j["mla"];
    const auto width = [&](const char* key) {
      if (!m.contains(key) || !m[key].is_number_integer())
        base::fail("'{}': key 'mla.{}' must be an integer", path, key);
      return m[key].get<int64_t>();
    };
    c.model.attention = "mla";
    c.model.q_lora_rank = width("q_lora");
    c.model.kv_lora_rank = width("kv_lora");
    c.model.qk_nope_head_dim = width("nope");
    c.model.qk_rope_head_dim = width("rope");
    c.model.v_head_dim = width("v");
  } else {
    c.model.num_kv_heads = need("num_kv_heads");
    c.model.head_dim = need("head_dim");
  }
  c.model.qk_norm = qk_norm != "none";
  c.model.qk_norm_full = qk_norm == "full";
  c.model.norm_eps = j.value("rms_eps", 1e-6);
  c.model.rope_theta = j.value("rope_theta", 10000.0);
  c.moe.num_experts = need("num_experts");
  c.moe.top_k = need("top_k");
  c.moe.ffn_hidden_size = need("moe_ffn");
  c.moe.shared_ffn_hidden_size = j.value("shared_ffn", int64_t{0});
  const nlohmann::json router = j.value("router", nlohmann::json::object());
  c.moe.score = router.value("score", "softmax");
  c.moe.scaling_factor = router.value("scale", 1.0);
  // Softmax over the chosen ones is softmax over all, renormalised.
  c.moe.pre_softmax = c.moe.score == "softmax" && !router.value("norm_topk", true);
  if (c.moe.pre_softmax) c.moe.renormalize = false;
  c.moe.load_balancing = {"aux"};
  c.moe.aux_coef = {j.value("aux_coef", 0.0)};
  c.train.seq_len = need("seq_len");
  c.train.micro_batch = need("micro_batch");
  c.train.num_microbatches = j.value("grad_accum", int64_t{1});
  c.data.isolate_documents = false;  // every sequence is one document
  c.train.loss_chunk = j.value("ce_chunk", int64_t{optimizer == "fp32" ? 0 : 4096});
  c.optimizer.lr = 1e-4;
  c.optimizer.schedule = "constant";
  c.optimizer.weight_decay = j.value("weight_decay", 0.1);
  c.optimizer.clip = j.value("clip", 1.0);
  c.device.threads = threads;
  config::validate(c);
  return config::resolve(c);
}

void write_random_batch(interpret::Executor& executor, const config::Config& c, int64_t step_number) {
  namespace step = program::step;
  const int64_t T = c.train.micro_batch * c.train.seq_len;
  const base::RandomStream random(static_cast<uint64_t>(c.train.seed), base::RandomUse::Test,
                                  static_cast<uint32_t>(step_number), 0);
  // Those the program holds: passes over repeated stages take the same rows.
  for (int mb = 0; mb < c.train.num_microbatches && executor.has(step::tokens, mb); ++mb) {
    const std::span<int32_t> tokens = executor.at(step::tokens, mb), labels = executor.at(step::labels, mb),
                             positions = executor.at(step::positions, mb),
                             doc_start = executor.at(step::doc_start, mb);
    const std::span<uint8_t> valid = executor.at(step::valid, mb),
                             loss_mask = executor.at(step::loss_mask, mb);
    const std::span<int64_t> token_index = executor.at(step::token_index, mb);
    for (int64_t t = 0; t < T; ++t) {
      const auto i = static_cast<size_t>(t);
      const int64_t row = t / c.train.seq_len * c.train.seq_len;
      tokens[i] = static_cast<int32_t>(random.uniform(static_cast<uint64_t>(mb * T + t)) *
                                       static_cast<double>(c.model.vocab_size));
      positions[i] = static_cast<int32_t>(t - row);
      doc_start[i] = static_cast<int32_t>(row);
      valid[i] = 1;
      token_index[i] = mb * T + t;
      loss_mask[i] = (t + 1) % c.train.seq_len != 0;
    }
    std::copy(tokens.begin() + 1, tokens.end(), labels.begin());
    labels.back() = 0;
  }
  const int64_t n = c.train.num_microbatches * c.train.micro_batch;
  runtime::write_norm(executor, {n * c.train.seq_len, n * (c.train.seq_len - 1), n * c.train.seq_len, n},
                      c.train.num_microbatches);
  runtime::write_rng(executor, c.train.seed, step_number);
  runtime::write_hyper(executor, learning_rate(c, step_number), step_number);
}

namespace {

double max_over_mean(const interpret::Executor& executor, const config::Config& c) {
  double sum = 0;
  for (int layer = 0; layer < c.model.num_layers; ++layer) {
    if (!config::is_moe_layer(c, layer)) continue;
    sum +=
        report::router_health(layer, executor.at(program::step::load, layer), 0, {}, std::span<const float>{})
            .max_over_mean;
  }
  return sum > 0 ? sum / double(config::num_moe_layers(c)) : 0;
}

// One SHA-256 of those of all tensors, in the order of their names. Hashed side by side, a few MiB of each at a time: a
// large model has 100 GB.
std::string digest_of(runtime::Programs& programs) {
  std::vector<checkpoint::TensorRef> tensors = programs.tensors();
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<base::Sha256Digest> digests(tensors.size());
  std::mutex reading;
  programs.pool().for_each_tile(static_cast<int64_t>(tensors.size()), [&](int64_t i) {
    constexpr int64_t kAtOnce = int64_t{4} << 20;
    const checkpoint::ConstBytes& bytes = tensors[static_cast<size_t>(i)].bytes;
    std::vector<std::byte> piece;
    base::Sha256 hash;
    for (int64_t at = 0; at < bytes.size(); at += kAtOnce) {
      piece.resize(static_cast<size_t>(std::min(kAtOnce, bytes.size() - at)));
      {
        std::lock_guard lock(reading);
        bytes.read(at, piece);
      }
      hash.update(piece);
    }
    digests[static_cast<size_t>(i)] = hash.digest();
  });
  base::Sha256 all;
  for (size_t i = 0; i < tensors.size(); ++i) all.update(tensors[i].name + "\n").update(digests[i]);
  return all.hex();
}

}  // namespace

BenchResult bench_step(runtime::Programs& programs, const BenchOptions& options) {
  interpret::Executor& executor = programs.train();
  const config::Config& c = programs.config();
  const bool gpu = programs.machine() != nullptr;
  interpret::RunOptions timed, plain;
  timed.timing = true;
  BenchResult out;
  double spent = 0, on_device = 0;
  bool device_known = true;
  int64_t step = 1;
  for (; step <= options.warmup + options.steps; ++step) {
    write_random_batch(executor, c, step);
    const auto start = std::chrono::steady_clock::now();
    executor.run(gpu ? plain : timed);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (step > options.warmup) {
      out.step_seconds.push_back(seconds), spent += seconds;
      on_device += executor.device_seconds();
      device_known = device_known && executor.device_seconds() > 0;
    }
    if (options.seconds > 0 && spent >= options.seconds) break;
  }
  if (options.digest) out.digest = digest_of(programs);
  if (device_known) out.host_gap_percent = 100 * (spent - on_device) / spent;
  if (gpu) {  // events around every stage cost time, so the breakdown is of a step of its own
    write_random_batch(executor, c, step);
    executor.run(timed);
  }
  const std::span<const double> loss = executor.at(program::step::loss);
  out.loss = loss[0] / loss[1];
  out.max_over_mean = max_over_mean(executor, c);
  std::vector<double> sorted = out.step_seconds;
  std::sort(sorted.begin(), sorted.end());
  out.median_seconds = sorted.at(sorted.size() / 2);
  const double tokens = double(c.train.micro_batch * c.train.num_microbatches * c.train.seq_len);
  out.tokens_per_s = tokens / out.median_seconds;
  out.model_flops = cost::model_flops(c, tokens, double(c.train.seq_len)).total();
  out.hardware_flops = cost::hardware_flops(executor.program());
  out.gemm_rate =
      gpu ? programs.machine()->gemm_rate()
          : device::measure_gemm_rate(programs.pool(),
                                      c.model.dtype == "float64" ? tensor::Dtype::F64 : tensor::Dtype::F32);
  out.timeline = executor.timeline();
  out.breakdown = interpret::breakdown(executor.program(), out.timeline);
  double gemm_seconds = 0, gemm_flops = 0;
  for (const interpret::Span& span : out.timeline.spans) {
    const program::Stage& stage = executor.program().stages[size_t(span.stage)];
    const program::KernelKind kind = program::kernel_of(stage.op);
    if (kind != program::KernelKind::linear && kind != program::KernelKind::grouped_linear &&
        kind != program::KernelKind::scaled_linear && kind != program::KernelKind::scaled_grouped_linear)
      continue;
    gemm_seconds += double(span.end_ns - span.start_ns) / 1e9;
    gemm_flops += cost::stage_flops(executor.program(), stage);
  }
  out.gemm_share = gemm_seconds / out.breakdown.total;
  out.gemm_stage_rate = gemm_seconds > 0 ? gemm_flops / gemm_seconds : 0;
  return out;
}

}  // namespace pleat::train
