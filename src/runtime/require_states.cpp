#include "runtime/require_states.h"

#include "base/error.h"
#include "model/state.h"

namespace pleat::runtime {

void require_states(const config::Config& c) {
  if (c.device.kind != "cuda") return;
  const auto refuse = [](const char* key, const std::string& value, const char* needed) {
    base::fail(
        "{} = \"{}\" has no kernels for a GPU yet: it can be planned and simulated there; to train, needed "
        "{}",
        key, value, needed);
  };
  for (const model::StateSlot& s : model::optimizer_of(c).states)
    if (s.coding != model::Coding::None) {
      const bool own =
          (s.name == ".moment1" ? c.optimizer.moment1_dtype : c.optimizer.moment2_dtype) != "unset";
      refuse(!own                   ? "optimizer.moment_dtype"
             : s.name == ".moment1" ? "optimizer.moment1_dtype"
                                    : "optimizer.moment2_dtype",
             "block8", "\"float32\" or \"bfloat16\", or device.kind = \"cpu\"");
    }
  if (c.model.dtype == "bfloat16" && c.optimizer.master != "float32")
    refuse("optimizer.master", c.optimizer.master, "\"float32\"");
  if (c.optimizer.state_space != "device")
    refuse("optimizer.state_space", c.optimizer.state_space, "\"device\", or device.kind = \"cpu\"");
}

}  // namespace pleat::runtime
