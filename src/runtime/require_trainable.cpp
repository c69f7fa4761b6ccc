#include "runtime/require_trainable.h"

#include "runtime/require_recipe.h"

namespace pleat::runtime {

void require_trainable(const config::Config& c) { require_recipe(c); }

}  // namespace pleat::runtime
