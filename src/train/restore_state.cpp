#include "train/restore_state.h"

#include <algorithm>
#include <set>
#include <string>

#include "safetensors/convert.h"

namespace pleat::train {
namespace {

using checkpoint::Loaded;
using checkpoint::Target;
using checkpoint::TensorEntry;

constexpr std::string_view kMaster = ".master";

const TensorEntry* find(const Loaded& loaded, const std::string& name) {
  const std::vector<TensorEntry>& all = loaded.manifest().tensors;  // ascending by name
  const auto at = std::lower_bound(all.begin(), all.end(), name,
                                   [](const TensorEntry& e, const std::string& n) { return e.name < n; });
  return at != all.end() && at->name == name ? &*at : nullptr;
}

// The tensor of the checkpoint that a target's numbers come from.
std::string source_of(const Loaded& loaded, const Target& target) {
  const std::string master = target.name + std::string(kMaster);
  const TensorEntry* same = find(loaded, target.name);
  if (same && same->dtype != target.dtype && find(loaded, master)) return master;
  if (!same && target.name.ends_with(kMaster))
    return target.name.substr(0, target.name.size() - kMaster.size());
  return target.name;
}

// What the checkpoint must hold, in the types it has: every source, and the weights whose masters are used
// instead.
std::vector<checkpoint::Expected> expected_in(const Loaded& loaded, std::span<const Target> targets) {
  std::vector<checkpoint::Expected> out;
  std::set<std::string> seen;
  const auto expect = [&](const std::string& name, const Target& target) {
    if (!seen.insert(name).second) return;
    const TensorEntry* entry = find(loaded, name);
    const bool convertible = entry && tensor::is_float(entry->dtype) && tensor::is_float(target.dtype);
    out.push_back({name, convertible ? entry->dtype : target.dtype, target.shape});
  };
  for (const Target& target : targets) {
    const std::string source = source_of(loaded, target);
    expect(source, target);
    if (source == target.name + std::string(kMaster)) expect(target.name, target);
  }
  return out;
}

template <class Wide>
void convert(const TensorEntry& from, std::span<const std::byte> raw, const Target& to) {
  std::vector<Wide> numbers(raw.size() / static_cast<size_t>(tensor::size_of(from.dtype)));
  safetensors::decode(safetensors::element_type_of(from.dtype), raw, std::span(numbers));
  safetensors::encode(safetensors::element_type_of(to.dtype), std::span<const Wide>(numbers), to.bytes);
}

}  // namespace

void restore_state(const Loaded& loaded, std::span<const Target> targets) {
  checkpoint::require_fits(loaded, expected_in(loaded, targets));
  loaded.verify();
  std::vector<std::byte> raw;
  for (const Target& target : targets) {
    const TensorEntry& entry = loaded.tensor(source_of(loaded, target));
    if (entry.dtype == target.dtype) {
      loaded.read_tensor(entry.name, target.bytes);
      continue;
    }
    raw.resize(static_cast<size_t>(entry.length));
    loaded.read_tensor(entry.name, raw);
    if (entry.dtype == tensor::Dtype::F64)
      convert<double>(entry, raw, target);
    else
      convert<float>(entry, raw, target);
  }
}

}  // namespace pleat::train
