// Any bytes are either a file of costs that is written back as it was read and from which any stage can be priced and a
// step simulated, or refused with base::Error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cost/cost_file.h"
#include "cost/measured_on.h"
#include "cost/price.h"
#include "tiny_step.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pleat::cost;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  CostFile file;
  try {
    file = costs_from_json(input, "fuzz");
  } catch (const pleat::base::Error&) {
    return 0;
  }
  const std::string text = to_json(file);
  if (to_json(costs_from_json(text, "again")) != text) std::abort();
  const CostTable table(file.entries);
  for (const CostEntry& entry : file.entries) {
    if (!table.find(entry.key)) std::abort();
    StageKey other = entry.key;
    for (int64_t& d : other.dims) d = d < (int64_t{1} << 40) ? d * 2 : d;
    const auto ns = table.ns(other, entry.work,
                             [](const pleat::kernels::Work& w, const std::string&) { return w.bytes; });
    if (!ns || !std::isfinite(*ns) || *ns < 0) std::abort();
    try {
      curve_point(entry);  // a kernel of another build is refused
    } catch (const pleat::base::Error&) {
    }
  }
  try {
    pleat::fuzz::simulate_tiny(pleat::schedule::make_ground(default_machine(file.machine), file));
  } catch (const pleat::base::Error&) {
  }
  return 0;
}
