#include "train/restore_state.h"

#include <algorithm>
#include <set>
#include <string>

#include "model/state.h"
#include "safetensors/convert.h"
#include "tensor/halves.h"

namespace pleat::train {
namespace {

using checkpoint::Loaded;
using checkpoint::Target;
using checkpoint::TensorEntry;

constexpr std::string_view kRest = model::kRest;

const TensorEntry* find(const Loaded& loaded, const std::string& name) {
  const std::vector<TensorEntry>& all = loaded.manifest().tensors;  // ascending by name
  const auto at = std::lower_bound(all.begin(), all.end(), name,
                                   [](const TensorEntry& e, const std::string& n) { return e.name < n; });
  return at != all.end() && at->name == name ? &*at : nullptr;
}

// Where a target's numbers come from, and which of them they are.
struct Source {
  std::string name;  // of a tensor in the checkpoint
  enum Part { Bits, Numbers, Joined, High, Rest } part = Bits;
};

Source source_of(const Loaded& loaded, const Target& target, const std::set<std::string>& targets) {
  const TensorEntry* same = find(loaded, target.name);
  const std::string rest = target.name + std::string(kRest);
  if (!same && target.name.ends_with(kRest))
    return {target.name.substr(0, target.name.size() - kRest.size()), Source::Rest};
  if (!same || same->dtype == target.dtype) return {target.name, Source::Bits};
  if (same->dtype == tensor::Dtype::BF16 && find(loaded, rest)) return {target.name, Source::Joined};
  return {target.name, targets.count(rest) ? Source::High : Source::Numbers};
}

// What the checkpoint must hold, in the types it has.
std::vector<checkpoint::Expected> expected_in(const Loaded& loaded, std::span<const Target> targets,
                                              const std::set<std::string>& names) {
  std::vector<checkpoint::Expected> out;
  std::set<std::string> seen;
  const auto expect = [&](const std::string& name, const Target& target, tensor::Dtype otherwise) {
    if (!seen.insert(name).second) return;
    const TensorEntry* entry = find(loaded, name);
    out.push_back({name, entry && tensor::is_float(entry->dtype) ? entry->dtype : otherwise, target.shape});
  };
  for (const Target& target : targets) {
    const Source source = source_of(loaded, target, names);
    if (source.part == Source::Bits)
      out.push_back({target.name, target.dtype, target.shape}), seen.insert(target.name);
    else
      expect(source.name, target, target.dtype);
    if (source.part == Source::Joined) expect(source.name + std::string(kRest), target, tensor::Dtype::I16);
  }
  return out;
}

template <class Wide>
std::vector<Wide> numbers_of(const Loaded& loaded, const std::string& name) {
  const TensorEntry& entry = loaded.tensor(name);
  std::vector<std::byte> raw(static_cast<size_t>(entry.length));
  loaded.read_tensor(name, raw);
  std::vector<Wide> numbers(raw.size() / static_cast<size_t>(tensor::size_of(entry.dtype)));
  safetensors::decode(safetensors::element_type_of(entry.dtype), raw, std::span(numbers));
  return numbers;
}

template <class Wide>
void convert(const Loaded& loaded, const Source& from, const Target& to) {
  const auto encode = [&](std::span<const Wide> numbers) {
    safetensors::encode(safetensors::element_type_of(to.dtype), numbers, to.bytes);
  };
  if (from.part == Source::Joined) {
    std::vector<uint16_t> high(static_cast<size_t>(loaded.tensor(from.name).length) / sizeof(uint16_t));
    std::vector<int16_t> rest(high.size());
    loaded.read_tensor(from.name, std::as_writable_bytes(std::span(high)));
    loaded.read_tensor(from.name + std::string(kRest), std::as_writable_bytes(std::span(rest)));
    std::vector<Wide> numbers(high.size());
    for (size_t i = 0; i < high.size(); ++i) numbers[i] = static_cast<Wide>(tensor::join(high[i], rest[i]));
    return encode(numbers);
  }
  const std::vector<Wide> numbers = numbers_of<Wide>(loaded, from.name);
  if (from.part == Source::Numbers) return encode(numbers);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const tensor::Halves halves = tensor::split(static_cast<float>(numbers[i]));
    if (from.part == Source::High)
      reinterpret_cast<uint16_t*>(to.bytes.data())[i] = halves.high;
    else
      reinterpret_cast<int16_t*>(to.bytes.data())[i] = halves.rest;
  }
}

void read_all(const Loaded& loaded, std::span<const Target> targets, const std::set<std::string>& names) {
  for (const Target& target : targets) {
    const Source source = source_of(loaded, target, names);
    if (source.part == Source::Bits)
      loaded.read_tensor(source.name, target.bytes);
    else if (loaded.tensor(source.name).dtype == tensor::Dtype::F64 || target.dtype == tensor::Dtype::F64)
      convert<double>(loaded, source, target);
    else
      convert<float>(loaded, source, target);
  }
}

}  // namespace

void restore_state(const Loaded& loaded, std::span<const Target> targets) {
  std::set<std::string> names;
  for (const Target& target : targets) names.insert(target.name);
  checkpoint::require_fits(loaded, expected_in(loaded, targets, names));
  loaded.verify();
  read_all(loaded, targets, names);
}

void restore_weights(const Loaded& loaded, std::span<const Target> targets) {
  std::vector<Target> there;
  std::set<std::string> names;
  for (const Target& target : targets) {
    if (target.name.ends_with(".router.expert_bias") && !find(loaded, target.name)) {
      std::fill(target.bytes.begin(), target.bytes.end(), std::byte{0});
      continue;
    }
    there.push_back(target);
    names.insert(target.name);
  }
  for (const checkpoint::Expected& e : expected_in(loaded, there, names))
    if (loaded.tensor(e.name).shape != e.shape)
      base::fail("{}: '{}' has another shape than the model", loaded.path(), e.name);
  read_all(loaded, there, names);
}

}  // namespace pleat::train
