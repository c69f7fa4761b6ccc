// What of [parallel] can be judged without knowing the number of ranks; the rest is the layout's
// (layout/layout.h, layout/pipeline_string.h).
#include "base/error.h"
#include "config/validate.h"

namespace pleat::config {

void validate_parallel(const Config& c) {
  const ParallelConfig& p = c.parallel;
  if (p.vpp > 1 && p.pp == 1)
    base::fail("parallel.vpp = {} has no effect with parallel.pp = 1: there is no pipeline; remove it",
               p.vpp);
  const int64_t experts = c.moe.num_experts;
  if (experts == 0 && (p.ep > 1 || p.etp > 1))
    base::fail("parallel.{} = {} needs experts, but moe.num_experts = 0; remove it", p.ep > 1 ? "ep" : "etp",
               p.ep > 1 ? p.ep : p.etp);
  if (experts > 0 && experts % p.ep != 0) {
    int64_t below = std::min(p.ep, experts), above = p.ep;
    while (experts % below != 0) --below;
    while (above < experts && experts % above != 0) ++above;
    base::fail("parallel.ep = {} does not divide moe.num_experts = {}; the nearest that do are {}{}", p.ep,
               experts, below, above <= experts ? fmt::format(" and {}", above) : "");
  }
}

}  // namespace pleat::config
