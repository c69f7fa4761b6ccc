#include "runtime/require_trainable.h"

#include "base/error.h"

namespace pleat::runtime {

void require_trainable(const config::Config& c) {
  const std::string& recipe = c.precision.recipe;
  if (recipe == "none" || recipe == "fp8") return;
  base::fail(
      "precision.recipe = \"{}\" has no kernels yet: it can be planned and simulated; to train, needed "
      "\"none\" "
      "or \"fp8\"",
      recipe);
}

}  // namespace pleat::runtime
