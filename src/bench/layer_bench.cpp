#include "bench/layer_bench.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/rng.h"
#include "device/cuda/random.h"
#include "model/parameters.h"
#include "report/metrics.h"
#include "runtime/keep.h"
#include "runtime/runtime.h"
#include "runtime/step_inputs.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"

namespace pleat::bench {
namespace {

constexpr int kWarmup = 3;
constexpr double kWeightStd = 0.02;

using program::Value;
using runtime::Runtime;

double standard_deviation(const Value& v) { return v.name == "x" || v.name == "dy" ? 1.0 : kWeightStd; }

void write_random(Runtime& bound, size_t value) {
  const Value& v = bound.program().values[value];
  const int64_t n = program::num_elements(v);
  if (bound.machine()) {
    device::cuda::Lane& lane = bound.machine()->lane("compute");
    device::cuda::fill_random_std(lane, bound.machine()->arena() + bound.plan().offset[value], n,
                                  v.dtype == tensor::Dtype::BF16, static_cast<uint32_t>(value + 1),
                                  static_cast<float>(standard_deviation(v)));
    lane.synchronize();
    return;
  }
  const base::RandomStream random(1, base::RandomUse::Test, static_cast<uint32_t>(value), 0);
  float* to = reinterpret_cast<float*>(bound.bytes(static_cast<program::ValueId>(value)).host().data());
  for (int64_t i = 0; i < n; ++i)
    to[i] = static_cast<float>(standard_deviation(v) * random.normal(static_cast<uint64_t>(i)));
}

// Every persistent value: floats at random, and what the feed says of rows: all count, numbered in order.
void write_state(Runtime& bound) {
  for (size_t i = 0; i < bound.program().values.size(); ++i) {
    const Value& v = bound.program().values[i];
    if (v.life != program::Life::Persistent || v.view_of != program::kNoValue) continue;
    if (tensor::is_float(v.dtype)) {
      write_random(bound, i);
      continue;
    }
    const checkpoint::Bytes to = bound.bytes(static_cast<program::ValueId>(i));
    const auto n = static_cast<size_t>(program::num_elements(v));
    if (v.name == "mb0.valid") {
      to.write(0, std::vector<std::byte>(n, std::byte{1}));
    } else if (v.name == "mb0.token_index") {
      std::vector<int64_t> numbers(n);
      std::iota(numbers.begin(), numbers.end(), int64_t{0});
      to.write(0, std::as_bytes(std::span(numbers)));
    } else {
      base::fail_with(base::ExitCode::Internal, "the benchmark of a layer has nothing to write into '{}'",
                      v.name);
    }
  }
}

struct Measured {
  double median_seconds = 0, max_over_mean = 0;
};

Measured measure(Runtime& bound, const config::Config& config, int repeats) {
  interpret::Executor& executor = bound.executor();
  std::vector<double> seconds;
  Measured out;
  for (int run = 0; run < kWarmup + repeats; ++run) {
    if (config.moe.force_routing != "none") {
      runtime::write_rng(executor, config.train.seed, run + 1);
    }
    executor.run();
    if (run < kWarmup) continue;
    seconds.push_back(executor.seconds());
    out.max_over_mean +=
        report::router_health(0, executor.at(program::step::load, 0), 0, {}, std::span<const float>{})
            .max_over_mean /
        repeats;
  }
  std::sort(seconds.begin(), seconds.end());
  out.median_seconds = seconds[seconds.size() / 2];
  return out;
}

}  // namespace

const std::vector<LayerShape>& layer_shapes() {
  static const std::vector<LayerShape> shapes = {{"qwen3-30b", 32768, 2048, 768, 128, 8},
                                                 {"qwen3-30b", 8192, 2048, 768, 128, 8},
                                                 {"olmoe", 16384, 2048, 1024, 64, 8},
                                                 {"mixtral", 8192, 4096, 14336, 8, 2},
                                                 {"dsv3-64e", 16384, 7168, 2048, 64, 8}};
  return shapes;
}

LayerShape parse_layer_shape(const std::string& text) {
  LayerShape out;
  out.name = text;
  const char *at = text.data(), *end = text.data() + text.size();
  for (int64_t* number : {&out.tokens, &out.hidden, &out.ffn, &out.experts, &out.top_k}) {
    const auto [next, code] = std::from_chars(at, end, *number);
    const bool last = number == &out.top_k;
    if (code != std::errc{} || *number <= 0 || (last ? next != end : next == end || *next != ','))
      base::fail("shape '{}': needed five positive integers T,D,I,E,K, such as 16384,2048,1024,64,8", text);
    at = next + 1;
  }
  return out;
}

config::Config layer_config(const LayerShape& shape, const LayerOptions& options) {
  config::Config c;
  c.device.kind = options.gpu ? "cuda" : "cpu";
  c.device.threads = options.threads;
  c.model.dtype = options.gpu ? "bfloat16" : "float32";
  if (options.gpu) c.optimizer.grad_dtype = "bfloat16";
  c.model.hidden_size = shape.hidden;
  c.model.num_layers = 1;
  c.model.vocab_size = 2;  // neither vocabulary nor attention is part of the layer
  c.model.num_heads = 1;
  c.model.head_dim = 2;
  c.moe.num_experts = shape.experts;
  c.moe.top_k = shape.top_k;
  c.moe.ffn_hidden_size = shape.ffn;
  c.moe.load_balancing = {"none"};
  c.moe.aux_coef = {};
  if (options.skew > 0) {
    c.moe.force_routing = "loaded";
    c.moe.force_load = options.skew;
  }
  c.train.micro_batch = 1;
  c.train.seq_len = shape.tokens;
  config::validate(c);
  return config::resolve(c);
}

LayerResult bench_layer(const LayerShape& shape, const LayerOptions& options) {
  const config::Config config = layer_config(shape, options);
  const auto table = model::make_parameters(config);
  LayerResult out;
  out.shape = shape;
  const double flops =
      6.0 * double(shape.tokens) * double(shape.top_k) * double(shape.hidden) * double(shape.ffn);
  for (const schedule::LayerPart part : {schedule::LayerPart::Forward, schedule::LayerPart::Both}) {
    Runtime bound(schedule::apply_passes(schedule::build_moe_layer(config, table, part), config),
                  static_cast<int>(config.device.threads),
                  options.gpu ? runtime::Device::Cuda : runtime::Device::Cpu);
    write_state(bound);
    const Measured measured = measure(bound, config, options.repeats);
    if (part == schedule::LayerPart::Forward) {
      out.forward_seconds = measured.median_seconds;
      out.forward_rate = flops / measured.median_seconds;
      continue;
    }
    out.both_seconds = measured.median_seconds;
    out.both_rate = 3 * flops / measured.median_seconds;
    out.max_over_mean = measured.max_over_mean;
    out.arena_bytes = bound.plan().arena_bytes;
    interpret::RunOptions timed;
    timed.timing = true;
    bound.executor().run(timed);
    out.operations = operation_times(bound.program(), bound.executor().timeline(), options.ceilings);
    if (!options.check_finite) continue;
    interpret::RunOptions looking;
    looking.find_non_finite = true;
    bound.executor().run(looking);
    if (bound.executor().non_finite())
      base::fail_with(base::ExitCode::Internal, "{}", bound.executor().non_finite()->text);
  }
  return out;
}

}  // namespace pleat::bench
