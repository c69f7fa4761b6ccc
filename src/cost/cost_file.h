// Measured times of stages, as `pleat bench costs` keeps them in a file (docs/formats.md), and what is made of them:
// how long any stage takes on that machine.
//
// A file is of one machine. Several of one machine are joined to one that knows the stages of all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cost/stage_key.h"
#include "kernels/contract.h"

namespace pleat::cost {

struct CostMachine {
  std::string name;          // of the processor, or of the host
  std::string kind = "cpu";  // cpu | cuda
  int64_t cores = 1;
  int64_t threads = 1;  // workers of the rank that was measured
  std::string gpu;      // "" on the CPU

  bool operator==(const CostMachine&) const = default;
};
// "cpu 'Xeon', 8 cores, 2 threads of a rank"
std::string describe(const CostMachine& machine);

struct CostEntry {
  StageKey key;
  kernels::Work work;                      // cost::stage_work, RoutedRows::Balanced
  double ns = 0, low_ns = 0, high_ns = 0;  // median, fastest and slowest
  int64_t seen = 0;                        // times it was measured
};

// What an exchange of a group takes in which every rank sends so many bytes to others.
struct LinkTime {
  std::string operation;  // as comm::name_of calls it
  int64_t ranks = 0;
  int64_t bytes = 0;
  double ns = 0;
};

// A whole step, for comparison: stages one after the other on one pipeline rank of a layout.
struct StepTime {
  std::string config;
  int64_t ranks = 1, pipeline_rank = 0;
  double ns = 0;         // median of the timed steps
  double stages_ns = 0;  // sum of the medians of its stages; exchanges are not in it
};

struct CostFile {
  CostMachine machine;
  std::string config;              // what was measured, by name
  std::vector<CostEntry> entries;  // by ascending key, each once
  std::vector<LinkTime> links;     // none: not measured
  // Element k - 1: how many times as long work takes when k cores of the machine are at work at once. Empty: not
  // measured; else the first is 1.
  std::vector<double> crowd;
  std::vector<StepTime> steps;
};

// A stage that takes longer than a quarter of an hour is an error; a sum of millions of shorter ones is a number.
inline constexpr double kMaxStageNs = 1e12;
inline constexpr int64_t kMaxCostFileBytes = int64_t{64} << 20;

std::string to_json(const CostFile& file);
// Throws base::Error beginning with `where` and naming the field on anything to_json would not have written.
CostFile costs_from_json(std::string_view text, std::string_view where);
// Replaces the file as a whole.
void write_costs(const std::string& path, const CostFile& file);
CostFile read_costs(const std::string& path);

// One of all. Of equal entries the one that was measured more often stays, of equal links and steps the first; the
// longest crowd. Throws naming both machines where they differ. `files` is not empty.
CostFile join(std::span<const CostFile> files);

// Nanoseconds of work by a formula: what measured times are compared with to carry them over to other sizes. Less than
// one counts as one.
using Formula = std::function<double(const kernels::Work& work, const std::string& kind)>;

class CostTable {
 public:
  CostTable() = default;
  explicit CostTable(const std::vector<CostEntry>& entries);

  // A stage that was measured takes what was measured. Else the nearest four entries of its kind (distance: Euclidean,
  // of the logarithms of dims) say by how much the formula errs: it is multiplied by the mean of ns / formula, of
  // logarithms weighted with 1 / distance^2. None of that kind: nothing is known.
  std::optional<double> ns(const StageKey& key, const kernels::Work& work, const Formula& formula) const;
  // Whether that very stage was measured.
  const CostEntry* find(const StageKey& key) const;
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
  std::map<std::string, std::vector<CostEntry>, std::less<>> by_kind_;
};

}  // namespace pleat::cost
