#include "schedule/pass/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "interpret/check/check_windows.h"
#include "program/builder.h"
#include "program/edit.h"
#include "program/order.h"
#include "program/value_name.h"

namespace pleat::schedule {

using namespace program;

namespace {

bool is_window(const Value& v) { return v.space == Space::Window; }

// What a value is, whatever its layer, microbatch and turn.
std::string kind_of(const Value& v) {
  std::string what(what_of(v));
  if (const size_t dot = what.find('.'); dot != std::string::npos) what.resize(dot);  // ".again"
  if (what.starts_with("d_")) what.erase(0, 2);  // gradients travel where rows do
  return what;
}

// Where a value is first and last used in the list.
struct Span {
  ValueId value = kNoValue;
  StageId first = -1, last = -1;
};

std::vector<Span> window_spans(const Program& program) {
  std::vector<Span> out;
  std::unordered_map<ValueId, size_t> known;
  for (size_t s = 0; s < program.stages.size(); ++s)
    for (const Use& use : program.stages[s].uses) {
      if (use.value == kNoValue || !is_window(program.values[static_cast<size_t>(use.value)])) continue;
      const auto [it, fresh] = known.try_emplace(use.value, out.size());
      if (fresh) out.push_back({use.value, static_cast<StageId>(s), static_cast<StageId>(s)});
      out[it->second].last = static_cast<StageId>(s);
    }
  return out;  // by first use
}

// Every window as a view of a place of its kind: the first that nobody needs any more.
Program with_places(Program program) {
  struct Place {
    StageId last = -1;
    int64_t bytes = 0;
    ValueId value = kNoValue;
  };
  std::map<std::string, std::vector<Place>> places;
  std::map<ValueId, std::pair<std::string, size_t>> place_of;
  for (const Span& span : window_spans(program)) {
    const Value& v = program.values[static_cast<size_t>(span.value)];
    PLEAT_CHECK(v.view_of == kNoValue, "window '{}' is a view already", v.name);
    std::vector<Place>& of_kind = places[kind_of(v)];
    size_t at = 0;
    while (at < of_kind.size() && of_kind[at].last >= span.first) ++at;
    if (at == of_kind.size()) of_kind.emplace_back();
    of_kind[at].last = span.last;
    of_kind[at].bytes = std::max(of_kind[at].bytes, num_bytes(v));
    place_of[span.value] = {kind_of(v), at};
  }
  for (auto& [kind, of_kind] : places)
    for (size_t i = 0; i < of_kind.size(); ++i) {
      Value place;
      place.name = fmt::format("window.{}.{}", kind, i);
      place.dtype = tensor::Dtype::U8;
      place.shape = {of_kind[i].bytes};
      place.space = Space::Window;
      place.owner = Owner::Workspace;
      of_kind[i].value = static_cast<ValueId>(program.values.size());
      program.values.push_back(std::move(place));
    }
  std::unordered_map<ValueId, ValueId> now;
  for (const auto& [id, where] : place_of) {
    Value view = program.values[static_cast<size_t>(id)];
    view.view_of = places.at(where.first)[where.second].value;
    view.offset = 0;
    program.values[static_cast<size_t>(id)].name += ".unplaced";
    now[id] = static_cast<ValueId>(program.values.size());
    program.values.push_back(std::move(view));
  }
  for (Stage& stage : program.stages)
    for (Use& use : stage.uses)
      if (const auto it = now.find(use.value); it != now.end()) use.value = it->second;
  return without_unused_values(std::move(program), is_window);
}

// A meeting with no other purpose than that what stands there may be overwritten.
Stage meeting_before(const Stage& store, ValueId there, ValueId met, int part) {
  Stage s;
  s.op = Op::window_meet, s.phase = store.phase == Phase::Forward ? Phase::Forward : Phase::BackwardInput;
  s.lane = store.lane, s.model = store.model, s.microbatch = store.microbatch, s.chunk = store.chunk;
  s.layer = store.layer, s.replay = store.replay, s.part = part, s.group = store.group;
  s.uses = {r(there), w(met)};
  return s;
}

}  // namespace

bool has_windows(const Program& program) {
  return std::any_of(program.values.begin(), program.values.end(), is_window);
}

Program place_windows(Program program) {
  program = with_places(std::move(program));
  const Order order(program, edge_list(program));
  const std::vector<interpret::UnmetStore> unmet = interpret::unmet_stores(program, order);
  Edit edit(std::move(program));
  int part = 0;
  for (const interpret::UnmetStore& u : unmet) {
    Value met;
    met.name = tagged(fmt::format("window_free{}", part), -1, -1).text;
    met.dtype = tensor::Dtype::U8, met.shape = {1}, met.owner = Owner::Routing;
    const StageId inserted =
        edit.insert_before(u.store, meeting_before(edit[u.store], u.value, edit.add(std::move(met)), part));
    for (const StageId before : u.uses) edit.wait(inserted, before);
    edit.wait(u.store, inserted);
    ++part;
  }
  return edit.apply();
}

}  // namespace pleat::schedule
