#include "tune_support.h"

#include <algorithm>

#include "cost/machine_file.h"

namespace pleat::testing {

config::Config gpu_step(const std::vector<std::string>& sets) {
  return config::parse(R"(
model.dtype = "bfloat16"
model.vocab_size = 8000
model.hidden_size = 1024
model.num_layers = 4
model.num_heads = 8
model.num_kv_heads = 2
moe.num_experts = 8
moe.top_k = 2
moe.ffn_hidden_size = 512
train.seq_len = 512
train.num_microbatches = 8
device.kind = "cuda"
)",
                       sets);
}

schedule::Ground gpu_ground(double device_gib, double host_gib) {
  cost::Machine machine = cost::find_machine("h200");
  machine.processor.memory_gib = device_gib;
  machine.node.host_memory_gib = host_gib;
  return schedule::make_ground(machine);
}

std::vector<tune::Candidate> every_candidate(const tune::Space& space) {
  std::vector<tune::Candidate> all = {tune::without_any(space)};
  for (size_t f = 0; f < space.families.size(); ++f) {
    std::vector<tune::Candidate> wider;
    for (const tune::Candidate& c : all)
      for (size_t i = 0; i < space.families[f].choices.size(); ++i) {
        const int layers = static_cast<int>(space.families[f].choices[i].layers.size());
        for (int k = std::min(layers, 1); k <= layers; ++k) {
          wider.push_back(c);
          wider.back().choice[f] = i, wider.back().layers[f] = k;
        }
      }
    all = std::move(wider);
  }
  return all;
}

}  // namespace pleat::testing
