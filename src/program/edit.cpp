#include "program/edit.h"

#include <algorithm>

#include "base/error.h"

namespace pleat::program {

Edit::Edit(Program program) : program_(std::move(program)) {
  const size_t n = program_.stages.size();
  next_.resize(n + 1);
  prev_.resize(n + 1);
  erased_.assign(n + 1, 0);
  for (size_t i = 0; i <= n; ++i) {
    next_[i] = static_cast<StageId>(i == n ? 0 : i + 1);
    prev_[i] = static_cast<StageId>(i == 0 ? n : i - 1);
  }
}

Stage& Edit::operator[](StageId stage) {
  return stage < end() ? program_.stages[static_cast<size_t>(stage)]
                       : added_[static_cast<size_t>(stage - end() - 1)];
}

int Edit::lane(std::string_view name, std::string_view resource) {
  for (size_t i = 0; i < program_.lanes.size(); ++i)
    if (program_.lanes[i].name == name) return static_cast<int>(i);
  program_.lanes.push_back({std::string(name), std::string(resource)});
  return static_cast<int>(program_.lanes.size() - 1);
}

ValueId Edit::add(Value value) {
  program_.values.push_back(std::move(value));
  return static_cast<ValueId>(program_.values.size() - 1);
}

ValueId Edit::copy_of(ValueId of, std::string_view suffix) {
  Value copy = value(of);
  copy.name += suffix;
  return add(std::move(copy));
}

StageId Edit::link(StageId before, StageId after, Stage stage) {
  const StageId id = static_cast<StageId>(next_.size());
  added_.push_back(std::move(stage));
  next_.push_back(after);
  prev_.push_back(before);
  erased_.push_back(0);
  next_[static_cast<size_t>(before)] = prev_[static_cast<size_t>(after)] = id;
  return id;
}

StageId Edit::insert_before(StageId where, Stage stage) {
  return link(prev_[static_cast<size_t>(where)], where, std::move(stage));
}

StageId Edit::insert_after(StageId where, Stage stage) {
  PLEAT_CHECK(where != end(), "nothing is behind the end");
  return link(where, next_[static_cast<size_t>(where)], std::move(stage));
}

void Edit::erase(StageId stage) { erased_[static_cast<size_t>(stage)] = 1; }

StageId Edit::replace(StageId first, StageId last, Stage by) {
  PLEAT_CHECK(0 <= first && first <= last && last < end(), "stages {} to {} of {} are no run", first, last,
              end());
  for (StageId s = first; s <= last; ++s) {
    const std::vector<StageId>& waits = (*this)[s].after;
    by.after.insert(by.after.end(), waits.begin(), waits.end());
  }
  std::erase_if(by.after, [&](StageId s) { return first <= s && s <= last; });
  const StageId id = insert_before(first, std::move(by));
  for (StageId s = first; s <= last; ++s) erase(s), replaced_by_[s] = id;
  return id;
}

void Edit::move_to_lane(StageId stage, int lane) {
  PLEAT_CHECK(0 <= lane && lane < static_cast<int>(program_.lanes.size()), "lane {} is not declared", lane);
  (*this)[stage].lane = static_cast<int16_t>(lane);
}

void Edit::wait(StageId stage, StageId for_stage) { (*this)[stage].after.push_back(for_stage); }

void Edit::redirect(ValueId from, ValueId to, StageId first) { redirects_[first].emplace_back(from, to); }

void Edit::forward_uses(Stage& stage) {
  for (Use& use : stage.uses) {
    if (use.value == kNoValue) continue;
    if (const auto direct = now_.find(use.value); direct != now_.end()) {
      use.value = direct->second;
      continue;
    }
    const ValueId view_of = value(use.value).view_of;
    const auto root = view_of == kNoValue ? now_.end() : now_.find(view_of);
    if (root == now_.end()) continue;
    ValueId& view = views_.try_emplace((int64_t{root->second} << 32) + use.value, kNoValue).first->second;
    if (view == kNoValue) {
      const Value &from = value(view_of), &to = value(root->second);
      Value copy = value(use.value);
      copy.name = copy.name.starts_with(from.name) ? to.name + copy.name.substr(from.name.size())
                                                   : copy.name + "." + to.name;
      copy.space = to.space, copy.life = to.life, copy.owner = to.owner;
      copy.view_of = to.view_of == kNoValue ? root->second : to.view_of;
      copy.offset += to.offset;
      view = add(std::move(copy));
    }
    use.value = view;
  }
}

Program Edit::apply() {
  std::vector<char> awaited(next_.size(), 0);
  for (StageId s = next_[static_cast<size_t>(end())]; s != end(); s = next_[static_cast<size_t>(s)])
    for (const StageId w : (*this)[s].after) awaited[static_cast<size_t>(w)] = 1;

  std::vector<StageId> position(next_.size(), -1);
  std::unordered_map<StageId, std::vector<StageId>> instead;                  // of erased stages
  std::vector<StageId> last(std::max<size_t>(1, program_.lanes.size()), -1);  // per lane, of those that stay
  std::vector<Stage> stages;
  stages.reserve(next_.size() - 1);
  for (StageId s = next_[static_cast<size_t>(end())]; s != end(); s = next_[static_cast<size_t>(s)]) {
    Stage& stage = (*this)[s];
    if (const auto starts = redirects_.find(s); starts != redirects_.end())
      for (const auto& [from, to] : starts->second) now_[from] = to;
    std::vector<StageId> waits;
    for (const StageId w : stage.after) {
      if (position[static_cast<size_t>(w)] >= 0) {
        waits.push_back(position[static_cast<size_t>(w)]);
        continue;
      }
      const auto stand_ins = instead.find(w);
      PLEAT_CHECK(stand_ins != instead.end(), "{} waits for {}, which does not come before it",
                  stage_name(stage), stage_name((*this)[w]));
      waits.insert(waits.end(), stand_ins->second.begin(), stand_ins->second.end());
    }
    StageId& before = last[static_cast<size_t>(stage.lane)];
    if (erased_[static_cast<size_t>(s)]) {
      if (!awaited[static_cast<size_t>(s)]) continue;
      if (const auto other = replaced_by_.find(s); other != replaced_by_.end())
        waits.assign(1, position[static_cast<size_t>(other->second)]);
      else if (before >= 0)
        waits.push_back(before);
      instead[s] = std::move(waits);
      continue;
    }
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    stage.after = std::move(waits);
    if (!now_.empty()) forward_uses(stage);
    before = position[static_cast<size_t>(s)] = static_cast<StageId>(stages.size());
    stages.push_back(std::move(stage));
  }
  program_.stages = std::move(stages);
  return std::move(program_);
}

Program with_waits(Program program, std::span<const Wait> waits) {
  Edit edit(std::move(program));
  for (const Wait& w : waits) edit.wait(w.stage, w.for_stage);
  return edit.apply();
}

Program reordered(Program program, std::span<const StageId> order) {
  PLEAT_CHECK(order.size() == program.stages.size(), "an order of {} stages for {}", order.size(),
              program.stages.size());
  std::vector<StageId> now(order.size(), -1);
  std::vector<Stage> stages;
  stages.reserve(order.size());
  for (const StageId s : order) {
    PLEAT_CHECK(now[static_cast<size_t>(s)] < 0, "stage {} stands twice in an order", s);
    now[static_cast<size_t>(s)] = static_cast<StageId>(stages.size());
    stages.push_back(std::move(program.stages[static_cast<size_t>(s)]));
  }
  for (Stage& stage : stages) {
    for (StageId& before : stage.after) before = now[static_cast<size_t>(before)];
    std::sort(stage.after.begin(), stage.after.end());
  }
  program.stages = std::move(stages);
  return program;
}

}  // namespace pleat::program
