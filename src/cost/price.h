// What every stage of a program takes of a machine: measured where a costs file has it, else by formula and curve.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cost/cost_file.h"
#include "cost/curves.h"
#include "cost/exchange_time.h"
#include "cost/machine.h"
#include "model/mesh.h"
#include "program/program.h"
#include "program/stage_time.h"

namespace pleat::cost {

// Routed rows of the fullest rank over balanced ones, in a layer and microbatch.
using RankLoad = std::function<double(int layer, int microbatch)>;

struct Prices {
  Machine machine;  // of one rank (machine_of_rank)
  Reach reach = {};
  model::Mesh mesh = {};
  Curves curves = ideal_curves();
  const CostTable* table = nullptr;  // in times of this machine; outlives whoever uses this
  bool table_is_carried = false;     // it was measured on another one
  RankLoad load = {};                // none: balanced
  int64_t threads = 1;               // of a rank on a CPU
  bool links_measured = false;       // among ranks that had their cores at work: crowding is in them
  bool graph = true;                 // a GPU's step is launched as one; else the host issues every stage
};

// Where the times of stages came from: how many, and their time alone. Exchanges: whatever links alone decide, copies to
// and from the host included.
struct PriceSources {
  int64_t measured = 0, carried = 0, by_curve = 0, exchanges = 0;
  double measured_ns = 0, carried_ns = 0, by_curve_ns = 0, exchange_ns = 0;
};

// The programs it is asked about outlive it and stay as they are. One thread.
class Pricer {
 public:
  explicit Pricer(Prices prices) : p_(std::move(prices)) {}

  program::StageTime operator()(const program::Program& program, const program::Stage& stage) const;
  const Prices& prices() const { return p_; }
  // Of every call so far.
  const PriceSources& sources() const { return sources_; }

 private:
  struct Priced {
    double fixed_ns = 0, flow_ns = 0, bytes = 0;
    int launches = 1;
    enum From : uint8_t { Measured, Carried, ByCurve, ByLink } from = ByCurve;
  };
  // What the table says of a stage, nothing where it knows none of its kind.
  struct Known {
    double ns = 0;
    Priced::From from = Priced::Measured;
  };
  std::optional<Known> look_up(const program::Program& program, const program::Stage& stage,
                               const kernels::Work& work,
                               const std::function<double(const kernels::Work&)>& formula) const;
  Priced price_kernel(const program::Program& program, const program::Stage& stage, double rows) const;
  program::StageTime exchange(const program::Program& program, const program::Stage& stage) const;
  program::StageTime host_copy(const program::Program& program, const program::Stage& stage,
                               bool to_host) const;
  void count(Priced::From from, double ns) const;
  double rows_of(const program::Stage& stage) const;
  uint64_t attrs_of(const program::Program& program, const program::Stage& stage) const;

  Prices p_;
  // Equal stages of a step are many: each is priced once.
  mutable std::unordered_map<uint64_t, Priced> known_;
  mutable std::unordered_map<const program::Program*, std::vector<uint64_t>> attr_hashes_;
  mutable PriceSources sources_;
};

// The element type that decides the rate of a stage's products: of its first argument that products have a rate for.
tensor::Dtype rate_dtype(const program::Program& program, const program::Stage& stage);

// What a measured stage says about its class; the names in its kind are read back.
CurvePoint curve_point(const CostEntry& entry);

}  // namespace pleat::cost
