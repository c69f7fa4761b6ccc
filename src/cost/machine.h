// A described machine: what a rank computes with, what ranks of one node share, and what lies between nodes. Plain
// numbers, read from a file (cost/machine_file.h); what time follows from them is in docs/simulation.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace pleat::cost {

// A message of n bytes takes latency + (n + half) / rate: half the rate is reached by messages of `half_kib`.
struct Link {
  double gb_s = 0;  // one way, 1e9 bytes
  double latency_us = 0;
  double half_kib = 0;

  double latency_ns() const { return latency_us * 1e3; }
  double flow_ns(double bytes) const { return (bytes + half_kib * 1024) / gb_s; }
};

enum class MachineKind : uint8_t { Gpu, Cpu };

// One GPU, or one core of a CPU. Rates are the makers', as papers count them: what is reached of them is the
// business of curves (cost/curves.h).
struct Processor {
  std::string
      gpu;  // words of the name its driver gives it, "H200": which costs were measured on one; "" of a CPU
  double bf16_tflops = 0, fp8_tflops = 0, fp4_tflops = 0, f32_tflops = 0, f64_tflops = 0;  // 0: cannot
  double memory_gib = 0;                           // of a GPU; a CPU's ranks share the node's
  double memory_gb_s = 0;                          // read and written together
  int64_t units = 1;                               // multiprocessors of a GPU, cores of a CPU's node
  double launch_us = 0;                            // every kernel, copy or fill beside its own work
  double host_launch_us = 0, graph_launch_us = 0;  // of the host: one operation, one graph

  double flops_per_ns(tensor::Dtype dtype) const;  // of matrix products; throws where it cannot
};

struct Node {
  int64_t ranks = 1;  // GPUs of a node; of a CPU as many as are asked for
  Link link;          // between two of them, each way
  double host_link_gb_s = 0,
         host_link_both_gb_s = 0;  // copies of one GPU: alone, and each way with both at once
  double host_memory_gib = 0;
};

struct Network {
  int64_t nics = 1;  // of a node; ranks have equal parts of them
  Link nic;
  bool rails =
      false;  // a NIC reaches its like on other nodes: rows for others go over the node's links first
};

// What stages that are no kernels of the model take of the processor while they run.
struct Sharing {
  double exchange = 0;   // kernels that move bytes between ranks: their multiprocessors / all
  double host_copy = 0;  // a copy to or from the host, one way
};

struct Machine {
  std::string name;         // "h100": of the file
  std::string description;  // for people
  MachineKind kind = MachineKind::Gpu;
  Processor processor;
  Node node;
  Network network;
  Sharing sharing;

  // Of what leaves a node, the part of one rank.
  double network_gb_s() const {
    return network.nic.gb_s * static_cast<double>(network.nics) / static_cast<double>(node.ranks);
  }
};

// Whether a GPU that its driver calls so is this machine's: processor.gpu stands in the name as a whole word.
bool has_gpu(const Machine& machine, std::string_view driver_name);

// As one rank has it of which `ranks_here` share a node. Of a CPU: `threads` cores and its part of the adapters, since a
// CPU's node has as many ranks as are asked for. A GPU has its own of both, whoever else of its node is used.
Machine machine_of_rank(Machine machine, int64_t ranks_here, int64_t threads);

}  // namespace pleat::cost
