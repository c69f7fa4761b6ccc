#include "memory_argument.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "tune/memory_size.h"

namespace pleat::apps {
namespace {

constexpr double kBytesOfGib = 1024.0 * 1024 * 1024;

}  // namespace

void MemoryArgument::apply(cost::Machine& machine) const {
  if (!device.empty()) {
    const int64_t bytes = tune::memory_size(device, "--device-memory");
    if (machine.kind == cost::MachineKind::Cpu)
      base::fail(
          "--device-memory {}: ranks on machine '{}' have the memory of their node; needed is --host-memory",
          device, machine.name);
    machine.processor.memory_gib = static_cast<double>(bytes) / kBytesOfGib;
  }
  if (!host.empty())
    machine.node.host_memory_gib =
        static_cast<double>(tune::memory_size(host, "--host-memory")) / kBytesOfGib;
}

void add_memory_argument(CLI::App& command, MemoryArgument& a) {
  command.add_option(
      "--device-memory", a.device,
      "Memory of a GPU that a rank may take, such as 138GiB (default: all that the machine's has)");
  command.add_option("--host-memory", a.host,
                     "Memory of a node's host that its ranks may take together, such as 110GiB (default: all "
                     "that the machine's has)");
}

}  // namespace pleat::apps
