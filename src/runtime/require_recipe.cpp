#include "runtime/require_recipe.h"

#include "base/error.h"

namespace pleat::runtime {

void require_recipe(const config::Config& c) {
  const std::string& recipe = c.precision.recipe;
  if (recipe == "none" || (recipe == "fp8" && c.device.kind == "cpu")) return;
  if (recipe == "fp8")
    base::fail(
        "precision.recipe = \"fp8\" has no kernels for a GPU yet: it can be planned and simulated there; to "
        "train, needed "
        "\"none\", or device.kind = \"cpu\", which computes it by exact rounding");
  base::fail(
      "precision.recipe = \"{}\" has no kernels yet: it can be planned and simulated; to train, needed "
      "\"none\", or \"fp8\" "
      "with device.kind = \"cpu\"",
      recipe);
}

}  // namespace pleat::runtime
