// The numbers of an upcycle: which settings are possible, the scale, and whether the start is exact
// (upcycle.h derives the rule).
#include <cmath>

#include "base/error.h"
#include "exchange/upcycle.h"

namespace pleat::exchange {
namespace {

bool is_power_of_two(double x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5;
}

}  // namespace

UpcycleStart upcycle_start(const UpcycleOptions& o, int64_t width, double router_init_std) {
  const int64_t E = o.num_experts, k = o.top_k, G = o.granularity;
  if (E < 1) base::fail("{} experts; at least 1 is needed", E);
  if (G < 1) base::fail("granularity {}; at least 1 is needed", G);
  if (k < 1 || k > E) base::fail("top-k {} of {} experts; needed 1 to {}", k, E, E);
  if (E % G != 0)
    base::fail(
        "granularity {} does not divide the {} experts: every copy of the MLP has {} of them; {}{} would do",
        G, E, G, E > G ? fmt::format("{} or ", E / G * G) : "", (E / G + 1) * G);
  if (width % G != 0)
    base::fail("granularity {} does not divide the dense width {}: {} % {} = {}", G, width, width, G,
               width % G);
  if (!std::isfinite(router_init_std) || router_init_std < 0)
    base::fail("router init std {}; a number of at least 0 is needed", router_init_std);

  UpcycleStart out;
  out.scale = o.normalized ? double(G) : double(G) * double(E) / double(k);
  if (o.scaling == UpcycleScaling::CubeRoot) {
    out.gate = out.up = out.down = std::cbrt(out.scale);
  } else {
    out.up = std::exp2(std::floor(std::log2(out.scale) / 2));
    out.down = out.scale / out.up;
  }
  out.rounds = !is_power_of_two(out.gate) || !is_power_of_two(out.up) || !is_power_of_two(out.down);

  if (k % G != 0) {
    out.why = fmt::format("top-k {} is not a multiple of granularity {}: a copy of the MLP is chosen in part",
                          k, G);
  } else if (!o.normalized && k != E && router_init_std != 0) {
    out.why = fmt::format(
        "the probabilities of {} of {} experts sum to {:.4g} only on average (softmax over all experts, not "
        "normalised)",
        k, E, double(k) / double(E));
  } else if (o.scaling == UpcycleScaling::CubeRoot && out.scale != 1) {
    out.why = fmt::format("silu is not homogeneous and the gate is multiplied by {:.4g}", out.gate);
  } else {
    out.exact = true;
    out.why = fmt::format("every token meets {} whole cop{} of the MLP with weights that sum to 1", k / G,
                          k / G == 1 ? "y" : "ies");
  }
  return out;
}

}  // namespace pleat::exchange
