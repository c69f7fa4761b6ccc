#include "program/step_values.h"

#include <algorithm>
#include <iterator>

namespace pleat::program {
namespace {

constexpr std::string_view kStepValueNames[] = {
#define PLEAT_STEP_VALUE(name, type, of) #name,
#include "program/step_values.def"
#undef PLEAT_STEP_VALUE
};

uint64_t packed(StepValueKey key) {
  const auto part = [](int number) { return static_cast<uint64_t>(int64_t{number} + 1); };
  return static_cast<uint64_t>(key.id) << 56 | part(key.microbatch) << 28 | part(key.layer);
}

}  // namespace

std::string_view name_of(StepValueId id) { return kStepValueNames[static_cast<size_t>(id)]; }

StepValues::StepValues(const Program& program) {
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of != kNoValue || (v.life != Life::Input && v.life != Life::Result)) continue;
    const NameParts parts = read_name(v.name);
    const auto* known = std::find(std::begin(kStepValueNames), std::end(kStepValueNames), parts.what);
    if (known == std::end(kStepValueNames)) continue;  // kept for a look
    const auto id = static_cast<StepValueId>(known - std::begin(kStepValueNames));
    found_.emplace(packed({id, parts.microbatch, parts.layer}), static_cast<ValueId>(i));
  }
}

ValueId StepValues::find(StepValueKey key) const {
  const auto it = found_.find(packed(key));
  return it == found_.end() ? kNoValue : it->second;
}

}  // namespace pleat::program
