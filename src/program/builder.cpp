#include "program/builder.h"

#include <algorithm>

#include "base/error.h"

namespace pleat::program {

Builder::Builder(std::string name) {
  program_.name = std::move(name);
  PLEAT_CHECK(lane("compute", "compute") == kComputeLane, "the compute lane is declared first");
}

int Builder::lane(const std::string& name, const std::string& resource) {
  for (size_t i = 0; i < program_.lanes.size(); ++i)
    if (program_.lanes[i].name == name) return static_cast<int>(i);
  program_.lanes.push_back({name, resource});
  return static_cast<int>(program_.lanes.size() - 1);
}

namespace {

void set_name(Value& v, ValueName name) {
  v.name = std::move(name.text);
  v.microbatch = name.microbatch;
  v.layer = name.layer;
}

}  // namespace

ValueId Builder::value(ValueName name, tensor::Dtype dtype, std::vector<int64_t> shape, Owner owner,
                       Life life, Space space) {
  Value v;
  set_name(v, std::move(name));
  v.dtype = dtype;
  v.shape = std::move(shape);
  v.owner = owner;
  v.life = life;
  v.space = space;
  program_.values.push_back(std::move(v));
  written_.push_back(false);
  return static_cast<ValueId>(program_.values.size() - 1);
}

ValueId Builder::routed(ValueName name, tensor::Dtype dtype, std::vector<int64_t> shape, Owner owner,
                        int64_t expected, int64_t maximum, Space space) {
  const ValueId id = value(std::move(name), dtype, std::move(shape), owner, Life::Step, space);
  program_.values.back().expected_rows = expected;
  program_.values.back().maximum_rows = maximum;
  return id;
}

ValueId Builder::rows(ValueId of, int64_t begin, int64_t rows, const std::string& suffix) {
  const Value base = program_.values[static_cast<size_t>(of)];
  PLEAT_CHECK(base.view_of == kNoValue && !base.shape.empty() && begin >= 0 && begin + rows <= base.shape[0],
              "rows {}+{} of {}", begin, rows, base.name);
  const int64_t row_bytes = base.shape[0] ? num_bytes(base) / base.shape[0] : 0;
  Value v = base;
  v.name = base.name + suffix;
  v.shape[0] = rows;
  v.view_of = of;
  v.offset = begin * row_bytes;
  v.expected_rows = v.maximum_rows = 0;
  program_.values.push_back(std::move(v));
  written_.push_back(false);
  return static_cast<ValueId>(program_.values.size() - 1);
}

ValueId Builder::view(ValueId of, ValueName name, std::vector<int64_t> shape, int64_t begin) {
  const Value base = program_.values[static_cast<size_t>(of)];
  Value v = base;
  set_name(v, std::move(name));
  v.shape = std::move(shape);
  v.view_of = of;
  v.offset = begin * tensor::size_of(base.dtype);
  v.expected_rows = v.maximum_rows = 0;
  PLEAT_CHECK(base.view_of == kNoValue && begin >= 0 && v.offset + num_bytes(v) <= num_bytes(base),
              "{} is no part of {}", v.name, base.name);
  program_.values.push_back(std::move(v));
  written_.push_back(false);
  return static_cast<ValueId>(program_.values.size() - 1);
}

Use Builder::acc(ValueId v) const {
  return {v, written_[static_cast<size_t>(v)] ? Access::Update : Access::Write};
}

// As Program::intern, without a search through all sets: a pipeline rank writes a hundred thousand stages.
int32_t Builder::intern(AttrSet attrs) {
  if (attrs.empty()) return 0;
  std::sort(attrs.begin(), attrs.end(), [](const Attr& a, const Attr& b) { return a.key < b.key; });
  uint64_t hash = 0;
  for (const Attr& a : attrs)
    hash = (hash * 31 + std::hash<std::string>{}(a.key)) * 31 + std::hash<double>{}(a.number);
  const auto [begin, end] = interned_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (program_.attrs[static_cast<size_t>(it->second)] == attrs) return it->second;
  program_.attrs.push_back(std::move(attrs));
  const int32_t index = static_cast<int32_t>(program_.attrs.size() - 1);
  interned_.emplace(hash, index);
  return index;
}

void Builder::add(Op op, Phase phase, std::vector<Use> uses, AttrSet attrs) {
  const auto& arguments = arguments_of(op, phase);
  PLEAT_CHECK(takes(arguments, uses.size()), "{} {} takes {} arguments, got {}", name_of(op), name_of(phase),
              arguments.size(), uses.size());
  Stage stage;
  stage.op = op;
  stage.phase = phase;
  stage.lane = static_cast<int16_t>(lane_);
  stage.microbatch = place_.microbatch;
  stage.layer = place_.layer;
  stage.part = place_.part;
  stage.chunk = place_.chunk ? place_.chunk : chunk_;
  stage.attrs = intern(std::move(attrs));
  stage.uses = std::move(uses);
  for (Use& use : stage.uses)
    if (use.value == kNoValue) use = none();
  for (const Use& use : stage.uses)
    if (use.value != kNoValue && use.access != Access::Read) written_[static_cast<size_t>(use.value)] = true;
  if (program_.stages.size() >= static_cast<size_t>(kMaxStages))
    base::fail("program {} would have more than {} stages; fewer microbatches or layers are needed",
               program_.name, kMaxStages);
  program_.stages.push_back(std::move(stage));
}

void Builder::exchange(Op op, Phase phase, Group group, std::vector<Use> uses, AttrSet attrs) {
  add(op, phase, std::move(uses), std::move(attrs));
  program_.stages.back().group = group;
}

void Builder::transfer(Op op, Phase phase, Peer peer, std::vector<Use> uses) {
  add(op, phase, std::move(uses), {});
  program_.stages.back().group = Group::Pipeline;
  program_.stages.back().peer = peer;
}

}  // namespace pleat::program
