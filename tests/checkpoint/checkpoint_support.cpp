#include "checkpoint/checkpoint_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/rng.h"
#include "checkpoint/directory.h"

namespace pleat::checkpoint {

TestState::TestState(int64_t step, int64_t scale) : step_(step) {
  const std::vector<Tensor> kinds = {
      {"layer.0.weight", tensor::Dtype::F32, {8 * scale, 65}, {}},
      {"layer.0.router_bias", tensor::Dtype::F64, {7}, {}},
      {"optimizer.m.layer.0.weight", tensor::Dtype::F32, {8, 65 * scale}, {}},
      {"counts", tensor::Dtype::I64, {3, 5}, {}},
      {"tokens", tensor::Dtype::I32, {11}, {}},
      {"flags", tensor::Dtype::U8, {13}, {}},
      {"empty", tensor::Dtype::F32, {4, 0}, {}},
      {"scalar", tensor::Dtype::F64, {}, {}},
  };
  for (Tensor tensor : kinds) {
    const base::RandomStream stream(static_cast<uint64_t>(step), base::RandomUse::Test, 0,
                                    static_cast<uint32_t>(tensors.size()));
    tensor.bytes.resize(static_cast<size_t>(num_bytes_of(tensor.dtype, tensor.shape, tensor.name)));
    uint32_t block = 0;
    for (size_t i = 0; i < tensor.bytes.size(); ++i) {
      if (i % 4 == 0) block = stream.block(i)[0];
      tensor.bytes[i] = static_cast<std::byte>(block >> (8 * (i % 4)));
    }
    tensors.push_back(std::move(tensor));
  }
}

StateView TestState::view() const {
  StateView view;
  view.step = step_;
  for (const Tensor& t : tensors) view.tensors.push_back({t.name, t.dtype, t.shape, t.bytes});
  view.integers = {{"rng.seed", std::numeric_limits<int64_t>::min()},
                   {"data.position", std::numeric_limits<int64_t>::max()},
                   {"zero", 0},
                   {"step.copy", step_}};
  view.reals = {{"learning_rate", 0.1 * static_cast<double>(step_)},
                {"minus_zero", -0.0},
                {"nan", std::numeric_limits<double>::quiet_NaN()},
                {"infinity", -std::numeric_limits<double>::infinity()},
                {"denormal", 5e-324}};
  view.texts = {{"config", "a = \"1\"\n# \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \x01\\\"\t"}, {"empty", ""}};
  return view;
}

SaveOptions small_options() {
  SaveOptions options;
  options.block_bytes = 512;
  options.max_shard_bytes = 2000;
  return options;
}

namespace {
constexpr std::byte kPattern{0xC3};
}

Targets::Targets(const TestState& like) : tensors_(like.tensors) {
  for (TestState::Tensor& t : tensors_) std::fill(t.bytes.begin(), t.bytes.end(), kPattern);
}

std::vector<Target> Targets::list() {
  std::vector<Target> out;
  for (TestState::Tensor& t : tensors_) out.push_back({t.name, t.dtype, t.shape, t.bytes});
  return out;
}

bool Targets::untouched() const {
  return std::all_of(tensors_.begin(), tensors_.end(), [](const TestState::Tensor& t) {
    return std::all_of(t.bytes.begin(), t.bytes.end(), [](std::byte b) { return b == kPattern; });
  });
}

bool Targets::equals(const TestState& state) const {
  return std::equal(
      tensors_.begin(), tensors_.end(), state.tensors.begin(), state.tensors.end(),
      [](const TestState::Tensor& a, const TestState::Tensor& b) { return a.bytes == b.bytes; });
}

Thrown thrown_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::Error& error) {
    return {error.what(), error.code()};
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

std::string breach(base::Vfs& vfs, const std::string& directory,
                   const std::map<int64_t, std::string>& expected_digests,
                   const std::vector<int64_t>& allowed) {
  const Found found = find_newest(vfs, directory);
  for (const Skipped& skipped : found.skipped)
    if (step_of(skipped.name)) return fmt::format("visible but damaged: {}", skipped.reason);
  if (!found.newest) return allowed.empty() ? "" : "no checkpoint found";
  const int64_t newest = found.newest->step();
  if (std::find(allowed.begin(), allowed.end(), newest) == allowed.end())
    return fmt::format("step {} is the newest", newest);
  for (const int64_t step : list_checkpoints(vfs, directory).steps) {
    try {
      const Loaded loaded = open_step(vfs, directory, step);
      if (step != newest) loaded.verify();
      if (!expected_digests.contains(step) || expected_digests.at(step) != loaded.state_sha256())
        return fmt::format("step {} holds another state", step);
    } catch (const base::Error& error) {
      return fmt::format("visible but damaged: {}", error.what());
    }
  }
  return "";
}

}  // namespace pleat::checkpoint
