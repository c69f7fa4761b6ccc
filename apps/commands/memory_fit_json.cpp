#include "memory_fit_json.h"

#include <nlohmann/json.hpp>

namespace pleat::apps {

void add_fit(nlohmann::json& out, const train::MemoryFit& fit) {
  out["fits"] = fit.fits();
  out["memory"] = fit.text;
  out["memory_limit_bytes"] = fit.device_limit;
  out["host"] = {{"bytes", fit.host_bytes},
                 {"staging_bytes", fit.staging_bytes},
                 {"limit_bytes", fit.host_limit},
                 {"over_bytes", fit.host_over()}};
}

}  // namespace pleat::apps
