#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/counted.h"
#include "base/error.h"
#include "comm/gpu_choice.h"
#include "comm/process/launcher.h"
#include "comm/world.h"
#include "command.h"
#include "device/cuda/cuda.h"

namespace pleat::apps {

void add_launch(CLI::App& command, Action& chosen) {
  struct LaunchArguments {
    int ranks = 0, gpus = 0;
    comm::LaunchOptions options;
  };
  auto a = std::make_shared<LaunchArguments>();
  CLI::App* c = &command;
  auto* ranks = c->add_option("--ranks", a->ranks, "Start this many ranks, which compute on the CPU")
                    ->check(CLI::Range(1, 1024));
  c->add_option("--gpus", a->gpus, "Start this many ranks, each with a GPU of this machine")
      ->check(CLI::Range(1, 1024))
      ->excludes(ranks);
  c->add_option("--restarts", a->options.num_restarts,
                "Start all ranks again after a failure that asks for it (code 75, or a signal), up to this "
                "often; they "
                "go on from the newest checkpoint")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  c->add_option("--grace", a->options.grace_seconds,
                "Seconds the others have to end by themselves once one rank has failed")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  c->prefix_command();
  add_example(*c, "pleat launch --ranks 2 train configs/demo.toml --set parallel.ep=2");
  c->callback([a, c, &chosen] {
    chosen = [a, c] {
      const std::vector<std::string> words = c->remaining();
      if (a->ranks == 0 && a->gpus == 0) base::fail("how many ranks? --gpus N or --ranks N");
      if (words.empty())
        base::fail("what shall the ranks do? For example: pleat launch --ranks 2 train CONFIG");
      if (const comm::World world = comm::read_world(); world.launcher != "none" && world.size > 1)
        base::fail("{} has started this process as rank {} of {} already; leave 'pleat launch' out",
                   world.launcher, world.rank, world.size);
      a->options.num_ranks = a->gpus > 0 ? a->gpus : a->ranks;
      if (a->gpus > 0) {
        std::string why;
        const int found = device::cuda::num_devices(&why);
        if (found == 0)
          base::fail_with(base::ExitCode::Hardware, "--gpus {}: no GPU can be used here: {}", a->gpus, why);
        if (found < a->gpus && !comm::gpus_are_shared())
          base::fail_with(base::ExitCode::Hardware, "--gpus {}: this machine has {}{}", a->gpus,
                          base::counted(found, "GPU"), comm::how_to_share_gpus());
      }
      std::vector<std::string> self = {std::filesystem::read_symlink("/proc/self/exe").string()};
      self.insert(self.end(), words.begin(), words.end());
      return comm::launch_ranks(self, a->options);
    };
  });
}

}  // namespace pleat::apps
