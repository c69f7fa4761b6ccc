// What a stage takes of a machine: time of its own, and shares of what lanes and ranks have in common. Who prices stages
// (cost/price.h) fills it, who simulates reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pleat::program {

// What stages that run at the same time compete for. Processor: the multiprocessors of a GPU, the cores of a CPU, which
// ranks of a machine may share. Network: this rank's part of what leaves its machine. The rest belongs to one rank. What
// moves bytes has two ways, out of the rank and into it, and neither slows the other.
enum class Resource : uint8_t { Processor, Memory, LinkOut, LinkIn, NetworkOut, NetworkIn, HostOut, HostIn };
constexpr size_t kNumResources = 8;

struct StageTime {
  int64_t fixed_ns = 0;  // latency: takes nothing of any resource, and nothing makes it longer
  int64_t flow_ns = 0;   // behind it, if nobody else is there
  // Of each resource, what it takes while it flows at full speed; 1: all of it. Of the processor of a CPU: cores.
  std::array<float, kNumResources> share{};
  bool crowds = true;  // cores that work beside it make it longer; false: they did when it was measured
  int64_t host_ns =
      0;  // the host needs to issue it, one stage after the other; 0: issued with a graph, or on a CPU

  int64_t alone_ns() const { return fixed_ns + flow_ns; }
  float& of(Resource r) { return share[static_cast<size_t>(r)]; }
  float of(Resource r) const { return share[static_cast<size_t>(r)]; }
};

}  // namespace pleat::program
