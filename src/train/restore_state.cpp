#include "train/restore_state.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "model/state.h"
#include "safetensors/convert.h"
#include "tensor/halves.h"

namespace pleat::train {
namespace {

using checkpoint::Expected;
using checkpoint::Loaded;
using checkpoint::Part;
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

Source source_of(const Loaded& loaded, const std::string& name, tensor::Dtype dtype,
                 const std::set<std::string>& wanted) {
  const TensorEntry* same = find(loaded, name);
  const std::string rest = name + std::string(kRest);
  if (!same && name.ends_with(kRest)) return {name.substr(0, name.size() - kRest.size()), Source::Rest};
  if (!same || same->dtype == dtype) return {name, Source::Bits};
  if (same->dtype == tensor::Dtype::BF16 && find(loaded, rest)) return {name, Source::Joined};
  return {name, wanted.count(rest) ? Source::High : Source::Numbers};
}

// What the checkpoint must hold, in the types it has.
template <class Tensor>  // Target or Expected
std::vector<Expected> expected_in(const Loaded& loaded, std::span<const Tensor> tensors,
                                  const std::set<std::string>& names) {
  std::vector<Expected> out;
  std::set<std::string> seen;
  const auto expect = [&](const std::string& name, const Tensor& tensor, tensor::Dtype otherwise) {
    if (!seen.insert(name).second) return;
    const TensorEntry* entry = find(loaded, name);
    out.push_back({name, entry && tensor::is_float(entry->dtype) ? entry->dtype : otherwise, tensor.shape});
  };
  for (const Tensor& tensor : tensors) {
    const Source source = source_of(loaded, tensor.name, tensor.dtype, names);
    if (source.part == Source::Bits)
      out.push_back({tensor.name, tensor.dtype, tensor.shape}), seen.insert(tensor.name);
    else
      expect(source.name, tensor, tensor.dtype);
    if (source.part == Source::Joined) expect(source.name + std::string(kRest), tensor, tensor::Dtype::I16);
  }
  return out;
}

template <class Tensor>
std::set<std::string> names_of(std::span<const Tensor> tensors) {
  std::set<std::string> out;
  for (const Tensor& tensor : tensors) out.insert(tensor.name);
  return out;
}

// Elements as they lie in the checkpoint; of Joined also those of the rest.
struct Raw {
  tensor::Dtype dtype{};
  std::vector<std::byte> bytes, rest;
};

// `out` may lie at any address.
template <class Wide>
void convert_as(const Raw& raw, Source::Part part, tensor::Dtype to, std::span<std::byte> out) {
  std::vector<Wide> numbers(raw.bytes.size() / static_cast<size_t>(tensor::size_of(raw.dtype)));
  if (part == Source::Joined) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      uint16_t high = 0;
      int16_t rest = 0;
      std::memcpy(&high, raw.bytes.data() + i * sizeof high, sizeof high);
      std::memcpy(&rest, raw.rest.data() + i * sizeof rest, sizeof rest);
      numbers[i] = static_cast<Wide>(tensor::join(high, rest));
    }
  } else {
    safetensors::decode(safetensors::element_type_of(raw.dtype), raw.bytes, std::span(numbers));
  }
  if (part == Source::Joined || part == Source::Numbers)
    return safetensors::encode(safetensors::element_type_of(to), std::span<const Wide>(numbers), out);
  PLEAT_CHECK(out.size() == numbers.size() * sizeof(uint16_t));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const tensor::Halves halves = tensor::split(static_cast<float>(numbers[i]));
    if (part == Source::High)
      std::memcpy(out.data() + i * sizeof halves.high, &halves.high, sizeof halves.high);
    else
      std::memcpy(out.data() + i * sizeof halves.rest, &halves.rest, sizeof halves.rest);
  }
}

void convert(const Raw& raw, Source::Part part, tensor::Dtype to, std::span<std::byte> out) {
  if (raw.dtype == tensor::Dtype::F64 || to == tensor::Dtype::F64)
    convert_as<double>(raw, part, to, out);
  else
    convert_as<float>(raw, part, to, out);
}

}  // namespace

void restore_state(const Loaded& loaded, std::span<const Target> targets) {
  const std::set<std::string> names = names_of(targets);
  checkpoint::require_fits(loaded, expected_in(loaded, targets, names));
  loaded.verify();
  PartRestorer converted(loaded, names);
  for (const Target& target : targets) {
    if (const Source source = source_of(loaded, target.name, target.dtype, names);
        source.part == Source::Bits) {
      loaded.read_tensor(source.name, target.bytes);
      continue;
    }
    // A piece at a time, each block of which is checked again: nothing of the tensor's size beside the state.
    constexpr int64_t kBytesAtOnce = int64_t{4} << 20;
    const auto length = static_cast<int64_t>(target.bytes.size());
    for (int64_t at = 0; at < length; at += kBytesAtOnce) {
      const Part part{at, at, std::min(kBytesAtOnce, length - at)};
      converted.read(target.name, target.dtype, {&part, 1}, target.bytes);
    }
  }
}

PartRestorer PartRestorer::of_weights(const Loaded& loaded, std::span<const Expected> weights) {
  std::vector<Expected> there;
  std::copy_if(weights.begin(), weights.end(), std::back_inserter(there), [&](const Expected& e) {
    return !e.name.ends_with(".router.expert_bias") || find(loaded, e.name);
  });
  std::set<std::string> names = names_of(std::span<const Expected>(there));
  for (const Expected& e : expected_in(loaded, std::span<const Expected>(there), names))
    if (loaded.tensor(e.name).shape != e.shape)
      base::fail("{}: '{}' has another shape than the model", loaded.path(), e.name);
  return PartRestorer(loaded, std::move(names));
}

bool PartRestorer::has(const std::string& name) const { return names_.contains(name); }

PartRestorer::PartRestorer(const Loaded& loaded, std::span<const Expected> state)
    : loaded_(loaded), names_(names_of(state)), reader_(loaded), rest_reader_(loaded) {
  checkpoint::require_fits(loaded, expected_in(loaded, state, names_));
}

void PartRestorer::read(const std::string& name, tensor::Dtype dtype, std::span<const Part> parts,
                        std::span<std::byte> out) {
  const Source source = source_of(loaded_, name, dtype, names_);
  if (source.part == Source::Bits) return reader_.read(name, parts, out);
  Raw raw{loaded_.tensor(source.name).dtype, {}, {}};
  const int64_t to_size = tensor::size_of(dtype), from_size = tensor::size_of(raw.dtype);
  const auto read = [&](checkpoint::PartReader& reader, const std::string& from, const Part& part,
                        std::vector<std::byte>& bytes) {
    const Part there{part.tensor_begin / to_size * from_size, 0, part.count / to_size * from_size};
    bytes.resize(static_cast<size_t>(there.count));
    reader.read(from, {&there, 1}, bytes);
  };
  for (const Part& part : parts) {
    PLEAT_CHECK(part.out_begin >= 0 && part.count <= static_cast<int64_t>(out.size()) - part.out_begin,
                "{} bytes of '{}' from {} on do not fit into {}", part.count, name, part.out_begin,
                out.size());
    read(reader_, source.name, part, raw.bytes);
    if (source.part == Source::Joined)  // a rest is as wide as the narrow weight
      read(rest_reader_, source.name + std::string(kRest), part, raw.rest);
    convert(raw, source.part, dtype,
            out.subspan(static_cast<size_t>(part.out_begin), static_cast<size_t>(part.count)));
  }
}

}  // namespace pleat::train
