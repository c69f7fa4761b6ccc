#include "schedule/pass/offload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "program/builder.h"
#include "program/edit.h"
#include "program/turns.h"
#include "schedule/parts.h"
#include "schedule/pass/low_precision.h"
#include "schedule/pass/recompute.h"

namespace pleat::schedule {

using namespace program;

namespace {

using ChunkOf = std::pair<int, int>;  // microbatch, chunk

// The last layers of every forward that is followed by its own backward.
std::set<std::tuple<int, int, int>> kept_layers(const Program& program, int64_t keep_last) {
  std::set<std::tuple<int, int, int>> out;
  std::vector<Turn> list = turns(program);
  std::erase_if(list, [](const Turn& t) { return t.microbatch < 0; });
  for (size_t t = 0; t + 1 < list.size(); ++t) {
    const Turn &now = list[t], &next = list[t + 1];
    if (!now.forward || next.forward || next.microbatch != now.microbatch || next.chunk != now.chunk)
      continue;
    std::set<int> layers;
    for (StageId s = now.begin; s < now.end; ++s)
      if (const int layer = program.stages[static_cast<size_t>(s)].layer; layer >= 0) layers.insert(layer);
    int64_t left = keep_last;
    for (auto layer = layers.rbegin(); layer != layers.rend() && left > 0; ++layer, --left)
      out.emplace(now.microbatch, now.chunk, *layer);
  }
  return out;
}

// Why a module moves nothing: what is left of the values it saves, rule after rule.
struct LeftOf {
  bool saves = false, late_enough = false, large_enough = false, goes = false;
  int64_t largest = 0;
};

// What goes, and of each module what is left.
std::vector<SavedValue> choose(const Program& program, const OffloadOptions& options,
                               std::vector<LeftOf>& left) {
  left.resize(options.modules.size());
  std::vector<SavedValue> values = saved_values(program, options.modules, options.layers);
  const auto note = [&](bool LeftOf::*passed) {
    for (const SavedValue& v : values)
      for (const size_t module : v.modules) left[module].*passed = true;
  };
  note(&LeftOf::saves);
  const auto kept = kept_layers(program, options.keep_last);
  std::erase_if(values, [&](const SavedValue& v) { return kept.contains({v.microbatch, v.chunk, v.layer}); });
  note(&LeftOf::late_enough);
  std::erase_if(values, [&](const SavedValue& v) {
    const int64_t bytes = num_bytes(program.values[static_cast<size_t>(v.value)]);
    for (const size_t module : v.modules) left[module].largest = std::max(left[module].largest, bytes);
    return bytes < options.min_bytes || bytes == 0;
  });
  note(&LeftOf::large_enough);
  std::map<ChunkOf, std::vector<std::pair<int, size_t>>> groups;  // (layer, module), in forward order
  const auto group_of = [](const SavedValue& v) { return std::pair{v.layer, v.modules.front()}; };
  for (const SavedValue& v : values) {
    auto& of = groups[{v.microbatch, v.chunk}];
    if (of.empty() || of.back() != group_of(v)) of.push_back(group_of(v));
  }
  std::erase_if(values, [&](const SavedValue& v) {
    const auto& of = groups[{v.microbatch, v.chunk}];
    const auto last =
        static_cast<size_t>(std::ceil(options.fraction * static_cast<double>(of.size()) - 1e-9));
    return last == 0 || of[last - 1] < group_of(v);
  });
  note(&LeftOf::goes);
  return values;
}

// The blocks of the compute lane (offload.h).
class Blocks {
 public:
  explicit Blocks(const Program& program) {
    Key last{};
    for (size_t s = 0; s < program.stages.size(); ++s) {
      const Stage& stage = program.stages[s];
      // What is recomputed belongs to the block that needs it.
      if (stage.lane != kComputeLane || stage.microbatch < 0 || stage.replay != 0) continue;
      const Region region = region_of(stage.op);
      if (region == Region::Optimizer || region == Region::HostLink) continue;
      const Key key = key_of(stage, region);
      if (begin_.empty() || key != last) begin_.push_back(static_cast<StageId>(s)), has_logits_.push_back(0);
      last = key;
      has_logits_.back() |= stage.op == Op::head;
    }
  }
  size_t size() const { return begin_.size(); }
  StageId begin(size_t block) const { return begin_[block]; }
  bool has_logits(size_t block) const { return has_logits_[block] != 0; }
  // The block a stage of the list stands in; the first for what stands before it.
  size_t of(StageId stage) const {
    const auto after = std::upper_bound(begin_.begin(), begin_.end(), stage);
    return after == begin_.begin() ? 0 : static_cast<size_t>(after - begin_.begin()) - 1;
  }

 private:
  enum class Part : uint8_t { Attention, Mlp, Ends };
  using Key = std::tuple<int, int, int, bool, Part>;
  static Key key_of(const Stage& stage, Region region) {
    // The head computes forward and backward in turn.
    if (region == Region::Head || region == Region::Embedding)
      return {stage.microbatch, stage.chunk, -1, false, Part::Ends};
    return {stage.microbatch, stage.chunk, stage.layer, stage.phase != Phase::Forward,
            region == Region::Attention ? Part::Attention : Part::Mlp};
  }
  std::vector<StageId> begin_;
  std::vector<char> has_logits_;
};

class Offloader {
 public:
  Offloader(Program program, const OffloadOptions& options, std::vector<SavedValue> values)
      : ahead_(static_cast<size_t>(options.ahead)),
        values_(std::move(values)),
        blocks_(program),
        edit_(std::move(program)) {
    StageId compute = -1;
    for (const Turn& turn : turns(edit_.program())) {
      StageId first = turn.begin;
      while (first < turn.end && edit_[first].lane != kComputeLane) ++first;
      for (StageId s = turn.begin; s < turn.end; ++s) {
        turn_start_.push_back(first < turn.end ? first : turn.begin);
        compute_before_.push_back(compute);
        if (edit_[s].lane == kComputeLane) compute = s;
      }
    }
  }

  Program run() {
    name_parts();
    copy_out();
    fetch();
    return edit_.apply();
  }

 private:
  struct Copied {
    SavedValue of;
    int part = 0;
    ValueId host = kNoValue;
  };

  // Names before places: a copy and its way back are called alike.
  void name_parts() {
    std::map<std::tuple<int, int, int>, int> parts;
    for (const SavedValue& v : values_) {
      const ValueId host = edit_.copy_of(v.value, ".on_host");
      edit_.value(host).space = Space::Pinned;
      copied_.push_back({v, parts[{v.microbatch, v.chunk, v.layer}]++, host});
    }
  }

  Stage copy_stage(const Copied& c, Op op, Phase phase, int lane, ValueId from, ValueId to) const {
    Stage s;
    s.op = op, s.phase = phase, s.lane = static_cast<int16_t>(lane);
    s.model = edit_[c.of.last_forward].model;
    s.microbatch = c.of.microbatch, s.chunk = c.of.chunk, s.layer = c.of.layer, s.part = c.part;
    s.uses = {r(from), w(to)};
    return s;
  }

  void copy_out() {
    std::stable_sort(copied_.begin(), copied_.end(),
                     [](const Copied& a, const Copied& b) { return a.of.last_forward < b.of.last_forward; });
    const int lane = edit_.lane("d2h", "host_link");
    StageId reader = -1, behind = -1;
    std::map<size_t, StageId>
        awaited;  // block -> the last copy it waits for: those before it are done by then
    for (const Copied& c : copied_) {
      const StageId last = c.of.last_forward;
      behind = edit_.insert_after(last == reader ? behind : last,
                                  copy_stage(c, Op::offload, Phase::Forward, lane, c.of.value, c.host));
      reader = last;
      const size_t block = blocks_.of(last) + ahead_ + 1;
      // The backward waits for the fetch, which waits for the copy.
      if (block < blocks_.size() && blocks_.begin(block) < c.of.first_backward) awaited[block] = behind;
    }
    for (const auto& [block, copy] : awaited) edit_.wait(blocks_.begin(block), copy);
  }

  void fetch() {
    std::stable_sort(copied_.begin(), copied_.end(), [](const Copied& a, const Copied& b) {
      return a.of.first_backward < b.of.first_backward;
    });
    const int lane = edit_.lane("h2d", "host_link");
    StageId waited = -1;
    for (const Copied& c : copied_) {
      const StageId reader = c.of.first_backward;
      const StageId begin = blocks_.begin(fetched_from(blocks_.of(reader)));
      // In the list it stands in the turn of its reader, behind the messages the turn begins with.
      const StageId where = std::min(reader, std::max(begin, turn_start_[static_cast<size_t>(reader)]));
      const ValueId back = edit_.copy_of(c.of.value, ".fetched");
      const StageId copy =
          edit_.insert_before(where, copy_stage(c, Op::fetch, Phase::BackwardInput, lane, c.host, back));
      // What ends before the block does; a lane that has waited for it need not wait again.
      if (const StageId before = compute_before_[static_cast<size_t>(begin)]; before > waited)
        edit_.wait(copy, before), waited = before;
      edit_.redirect(c.of.value, back, reader);
    }
  }

  // The block with which the fetch of what `block` needs may begin.
  size_t fetched_from(size_t block) const {
    size_t from = block;
    while (from > 0 && block - from < ahead_ && !blocks_.has_logits(from - 1)) --from;
    return from;
  }

  size_t ahead_;
  std::vector<SavedValue> values_;
  Blocks blocks_;
  Edit edit_;
  std::vector<Copied> copied_;
  std::vector<StageId> turn_start_;      // per stage: the first compute stage of its turn
  std::vector<StageId> compute_before_;  // per stage: the last compute stage before it; -1: none
};

}  // namespace

OffloadOptions offload_options(const config::Config& c) {
  const config::OffloadConfig& o = c.offload;
  OffloadOptions out{.modules = {},
                     .layers = config::offload_layers(c),
                     .fraction = o.fraction,
                     .keep_last = o.keep_last,
                     .ahead = o.ahead,
                     .min_bytes = o.min_bytes};
  // In the order of a layer, however they were written.
  out.modules = o.modules;
  const auto& all = offload_modules();
  const auto rank = [&](const std::string& m) { return std::find(all.begin(), all.end(), m) - all.begin(); };
  std::stable_sort(out.modules.begin(), out.modules.end(),
                   [&](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
  return out;
}

std::vector<SavedValue> offloaded_values(const Program& program, const OffloadOptions& options) {
  std::vector<LeftOf> left;
  return choose(program, options, left);
}

void require_offloaded(std::span<const Program> parts, const OffloadOptions& options) {
  std::vector<LeftOf> all(options.modules.size());
  for (const Program& part : parts) {
    std::vector<LeftOf> left;
    choose(part, options, left);
    for (size_t m = 0; m < all.size(); ++m) {
      all[m].saves |= left[m].saves, all[m].late_enough |= left[m].late_enough;
      all[m].large_enough |= left[m].large_enough, all[m].goes |= left[m].goes;
      all[m].largest = std::max(all[m].largest, left[m].largest);
    }
  }
  for (size_t m = 0; m < all.size(); ++m) {
    const LeftOf& left = all[m];
    if (left.goes) continue;
    const std::string what =
        fmt::format("offload.modules names '{}', which would move nothing", options.modules[m]);
    if (!left.saves)
      base::fail(
          "{}: no layer in offload.layers saves a value of its own for it, or recompute.modules makes these "
          "again. "
          "Remove it, or choose layers that do",
          what);
    if (!left.late_enough)
      base::fail(
          "{}: all layers that save something for it are among the last offload.keep_last = {}, which stay; "
          "choose earlier ones, or set it lower",
          what, options.keep_last);
    if (!left.large_enough)
      base::fail("{}: the largest tensor it saves has {} bytes, offload.min_bytes is {}; set it lower", what,
                 left.largest, options.min_bytes);
    base::fail("{}: it is not in the first offload.fraction = {} of what is chosen", what, options.fraction);
  }
}

void require_offloaded_by_ranks(const config::Config& config) {
  if (config.offload.modules.empty()) return;
  std::vector<Program> parts = parts_of_ranks(config);
  for (Program& part : parts) {
    if (!config.recompute.modules.empty())
      part = recompute(std::move(part), {config.recompute.modules, config::recompute_layers(config), true});
    if (config.precision.recipe != "none") part = low_precision(std::move(part), config);
  }
  require_offloaded(parts, offload_options(config));
}

Program offload(Program program, const OffloadOptions& options) {
  if (!options.is_part) require_offloaded({&program, 1}, options);
  std::vector<SavedValue> values = offloaded_values(program, options);
  return Offloader(std::move(program), options, std::move(values)).run();
}

}  // namespace pleat::schedule
