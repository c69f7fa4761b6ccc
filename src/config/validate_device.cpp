// What the kernels of a back end do not take. The limits are those the kernels themselves are made with, so a
// program without CUDA judges a configuration for a GPU as one with it does. What depends on the number of
// ranks as well is model/mesh_rules.cpp's.
#include "base/error.h"
#include "config/validate.h"
#include "program/limits.h"

namespace pleat::config {

namespace {

void check_types(const Config& c) {
  const bool gpu = c.device.kind == "cuda";
  if (!gpu && c.model.dtype == "bfloat16")
    base::fail(
        "model.dtype = \"bfloat16\" needs device.kind = \"cuda\" (now \"cpu\"): the CPU runs \"float32\" and "
        "\"float64\"");
  if (gpu && c.model.dtype == "float64")
    base::fail(
        "model.dtype = \"float64\" needs device.kind = \"cpu\" (now \"cuda\"): a GPU runs \"bfloat16\" and "
        "\"float32\"");
  if (gpu && c.moe.num_experts > 0 && c.moe.router_dtype == "float64")
    base::fail(
        "moe.router_dtype = \"float64\" needs device.kind = \"cpu\" (now \"cuda\"): a GPU's router runs in "
        "\"float32\"");
}

}  // namespace

void validate_device(const Config& c) {
  check_types(c);
  const bool ring = c.parallel.cp > 1 && c.parallel.context == "ring";
  if (c.device.in_order && (c.parallel.pp > 1 || ring))
    base::fail(
        "device.in_order = true needs {} (now {}): messages that wait for each other need lanes that run "
        "side "
        "by side",
        ring ? "parallel.context other than \"ring\"" : "parallel.pp = 1",
        ring ? std::string("\"ring\"") : std::to_string(c.parallel.pp));
  if (c.device.kind != "cuda") return;
  if (c.moe.num_groups > program::kMaxGpuGroups)
    base::fail(
        "moe.num_groups = {} is more than a GPU takes; at most {} is possible with device.kind = \"cuda\"",
        c.moe.num_groups, program::kMaxGpuGroups);
}

}  // namespace pleat::config
