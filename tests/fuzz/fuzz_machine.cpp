// Any bytes are either a machine, or curves, on which everything takes a time that is a number, or refused with
// base::Error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "cost/curves.h"
#include "cost/exchange_time.h"
#include "cost/machine_file.h"
#include "tiny_step.h"

namespace {

using namespace pleat::cost;

void require_number(double ns) {
  if (!std::isfinite(ns) || ns < 0) std::abort();
}

void price(const Machine& m) {
  for (const GroupReach& r : {GroupReach{8, 1, 8}, {16, 2, 8}, {1024, 1024, 1}, {7, 3, 1}})
    for (const double bytes : {0.0, 1.0, 1e12}) {
      require_number(ring_time(m, r, bytes).total_ns());
      require_number(all_reduce_time(m, r, bytes).total_ns());
      require_number(all_to_all_time(m, r, bytes).total_ns());
      require_number(message_time(m, r.nodes > 1, bytes).total_ns());
    }
  require_number(curve_ns(m, {}, pleat::tensor::Dtype::F32, {0, 1e12, 1}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const Machine machine = machine_from_toml(input, "fuzz");
    price(machine);
    pleat::fuzz::simulate_tiny(pleat::schedule::make_ground(machine));
  } catch (const pleat::base::Error&) {
  }
  try {
    const Curves curves = curves_from_toml(input, "fuzz");
    if (!(curves_from_toml(to_toml(curves), "again") == curves)) std::abort();
    const char* const machine = curves.kind == MachineKind::Gpu ? kDefaultGpu : kDefaultCpu;
    pleat::fuzz::simulate_tiny(pleat::schedule::make_ground(find_machine(machine), {}, curves));
  } catch (const pleat::base::Error&) {
  }
  return 0;
}
