// How passes change a program: what to insert, erase, replace and redirect is collected first, then made in
// one walk. Until then no position moves, so a pass walks the program it was given and names stages by their
// positions there; an inserted stage gets an id behind all of them. All references are kept: waits
// (Stage::after), uses, views.
//
//   Edit edit(std::move(program));
//   const int down = edit.lane("d2h", "host_link");
//   for (StageId s = 0; s < edit.num_stages(); ++s)
//     if (is_wanted(edit[s])) edit.insert_after(s, copy_to_host(edit, s, down));
//   return edit.apply();
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/program.h"

namespace pleat::program {

class Edit {
 public:
  explicit Edit(Program program);

  // Stages as they were given, with what was changed through operator[]; values and lanes as they are now.
  const Program& program() const { return program_; }
  StageId num_stages() const { return end(); }  // as given
  // A stage as given, or an inserted one. It may be changed where it is; references stay good until apply().
  Stage& operator[](StageId stage);
  const Stage& operator[](StageId stage) const { return const_cast<Edit&>(*this)[stage]; }

  int lane(std::string_view name, std::string_view resource);  // declares, or finds, a lane
  int32_t attrs(AttrSet set) { return program_.intern(std::move(set)); }
  ValueId add(Value value);
  ValueId copy_of(ValueId value, std::string_view suffix);  // the same again, called NAME + suffix
  Value& value(ValueId value) { return program_.values[static_cast<size_t>(value)]; }

  // Each returns the id of the new stage. `where` may be erased, or inserted itself; end() is behind the last.
  // Stages inserted before one stage stand in the order of the calls. What is inserted after one stands right
  // behind it: several are chained, each after the one before.
  StageId end() const { return static_cast<StageId>(program_.stages.size()); }
  StageId insert_before(StageId where, Stage stage);
  StageId insert_after(StageId where, Stage stage);

  // Who waited for an erased stage waits for the stage before it on its lane and for what it waited for
  // itself: those came before already, so no order is new.
  void erase(StageId stage);
  template <class Is>
  void erase_if(Is is) {
    for (StageId s = 0; s < num_stages(); ++s)
      if (is(std::as_const(*this)[s])) erase(s);
  }

  // One stage for the run first..last of stages as given. It waits for what they waited for, and who waited
  // for one of them waits for it.
  StageId replace(StageId first, StageId last, Stage by);
  StageId replace(StageId stage, Stage by) { return replace(stage, stage, std::move(by)); }

  void move_to_lane(StageId stage, int lane);  // its place in the list stays
  void wait(StageId stage, StageId for_stage);

  // From stage `first` on, inserted ones included, whoever uses `from` or a view of it uses `to` or the same
  // view of that.
  void redirect(ValueId from, ValueId to, StageId first);

  // Makes all of it. The edit is used up.
  Program apply();

 private:
  StageId link(StageId before, StageId after, Stage stage);
  void forward_uses(Stage& stage);

  Program program_;
  std::deque<Stage> added_;           // ids end() + 1 on; end() itself closes the ring of the list
  std::vector<StageId> next_, prev_;  // the list with everything inserted, erased stages included
  std::vector<char> erased_;
  std::unordered_map<StageId, StageId> replaced_by_;
  std::unordered_map<StageId, std::vector<std::pair<ValueId, ValueId>>> redirects_;  // by first stage
  std::unordered_map<ValueId, ValueId> now_;                                         // redirects in force
  std::unordered_map<int64_t, ValueId> views_;  // of what is redirected to
};

// The program with more declared waits.
struct Wait {
  StageId stage = 0, for_stage = 0;
};
Program with_waits(Program program, std::span<const Wait> waits);

// The same stages in another order: `order` has the position of every stage once. Who waits for a stage must still come
// behind it; check sees to that.
Program reordered(Program program, std::span<const StageId> order);

// Without the values that no stage uses and that may go. A value whose view is used is used.
using MayGo = std::function<bool(const Value&)>;
Program without_unused_values(
    Program program, const MayGo& may_go = [](const Value&) { return true; });

// Without the stages that nothing lasting needs: what they write is read by no stage that stays, and is dead
// outside the step. Then without step values that nothing uses. Messages stay: one has two ends, and the
// program of the other rank decides as well.
Program without_dead_stages(Program program);

}  // namespace pleat::program
