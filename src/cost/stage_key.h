// What decides how long the kernel of a stage takes: under which name its measured time is kept (cost/cost_file.h).
//
// Two stages with one key take the same time on one machine. Two of one kind do the same thing to other sizes, so
// the time of one says something about the other's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace pleat::cost {

struct StageKey {
  // "linear wgrad bf16 bf16 f32+ -": kernel, phase, then every argument: its type, "-" where it is absent, "+" where
  // it is added to or changed, "@pinned" or "@window" where it does not lie in the device's memory. Then the
  // attributes that choose a path: "activation=1", and "window=0" for a size that is none.
  std::string kind;
  // Dimensions of all present arguments one after the other, of routed values with the rows that even routing fills
  // (program::Value::expected_rows); of an argument that is a list, how many values it has and their elements in
  // all. Then the attributes that are sizes (heads, seq_len, experts, ...), by name.
  std::vector<int64_t> dims;

  bool operator==(const StageKey&) const = default;
  auto operator<=>(const StageKey&) const = default;
};

// A stage whose time is its own: none that meets other ranks, stores into their windows or makes the host wait.
bool has_cost_key(const program::Stage& stage);

// The stage must have one.
StageKey stage_key(const program::Program& program, const program::Stage& stage);

// What becomes of an attribute. Size: one of the dims. Path: a part of the kind, as a number. Switch: a part of the
// kind, whether it is zero. Nothing: a number that is computed with, or that the shapes say already. One that nobody
// has listed is a Path: it can then keep two apart that take the same time, never the other way round.
enum class AttrRole : uint8_t { Size, Path, Switch, Nothing };
AttrRole attr_role(std::string_view key);
bool attr_is_listed(std::string_view key);

}  // namespace pleat::cost
