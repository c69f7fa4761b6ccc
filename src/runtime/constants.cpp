#include "runtime/constants.h"

#include "model/rope.h"

namespace pleat::runtime {

void write_constants(Runtime& runtime, const config::ModelConfig& model, const RankPlace& place) {
  const program::Program& p = runtime.program();
  for (size_t i = 0; i < p.values.size(); ++i) {
    const program::Value& v = p.values[i];
    if (v.life != program::Life::Persistent || runtime.plan().offset[i] < 0) continue;
    const auto id = static_cast<program::ValueId>(i);
    const auto write = [&](const void* from) {
      runtime.bytes(id).write(
          0, {static_cast<const std::byte*>(from), static_cast<size_t>(program::num_bytes(v))});
    };
    if (v.name == "rope.inv_freq")
      write(model::rope_frequencies(model).data());
    else if (v.name == "coords")
      write(place.coords.data());
  }
}

}  // namespace pleat::runtime
