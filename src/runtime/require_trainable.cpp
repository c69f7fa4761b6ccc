#include "runtime/require_trainable.h"

#include "runtime/require_recipe.h"
#include "runtime/require_states.h"

namespace pleat::runtime {

void require_trainable(const config::Config& c) {
  require_recipe(c);
  require_states(c);
}

}  // namespace pleat::runtime
