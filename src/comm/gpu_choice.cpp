#include "comm/gpu_choice.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/counted.h"
#include "base/error.h"
#include "base/host_name.h"

namespace pleat::comm {

bool gpus_are_shared() {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

const char* how_to_share_gpus() {
  return "; to let ranks share a GPU, to try a layout and not to be fast, set NCCL_MULTI_RANK_GPU_ENABLE=1 "
         "(NCCL 2.30 "
         "or later)";
}

int gpu_of(const World& world, int num_gpus) {
  const int wanted = world.size == 1 ? 0 : world.local_rank;
  if (wanted < num_gpus) return wanted;
  if (num_gpus == 1 || (num_gpus > 0 && gpus_are_shared())) return wanted % num_gpus;
  base::fail_with(
      base::ExitCode::Hardware,
      "rank {} of {} is local rank {} here ({}) and takes the GPU of that number, but this process sees {}; "
      "start no more ranks on a machine than it has GPUs, and let each see all of them "
      "(CUDA_VISIBLE_DEVICES){}",
      world.rank, world.size, world.local_rank, world.launcher, base::counted(num_gpus, "GPU"),
      how_to_share_gpus());
}

void require_own_gpu(Endpoint& endpoint, const std::string& bus) {
  using Place = std::array<char, 128>;
  const auto n = static_cast<size_t>(endpoint.size());
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  Place mine{};
  const std::string text = base::host_name() + " " + bus;
  std::memcpy(mine.data(), text.data(), std::min(text.size(), mine.size() - 1));
  std::vector<Place> all(n);
  endpoint.group("gpus", ranks)
      ->all_gather("start.gpus", std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  if (gpus_are_shared()) return;
  for (size_t a = 0; a < n; ++a)
    for (size_t b = a + 1; b < n; ++b)
      if (all[a] == all[b])
        base::fail_with(
            base::ExitCode::Hardware,
            "ranks {} and {} have the same GPU ({}): let every process see all GPUs of its machine, or its "
            "own alone (CUDA_VISIBLE_DEVICES){}",
            a, b, all[a].data(), how_to_share_gpus());
}

}  // namespace pleat::comm
