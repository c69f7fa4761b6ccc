#include "schedule/pass/message_chain.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "program/edit.h"
#include "program/turns.h"
#include "schedule/pipeline_rounds.h"

namespace pleat::schedule {

using namespace program;

namespace {

// Read off the messages: the cut of the model a message crosses is its part (schedule/pipeline.cpp).
std::optional<PipelineShape> interleaved_shape(const Program& program) {
  PipelineShape shape;
  bool forward = false, backward = false;
  std::optional<int> sent, received;  // cuts that chunk 0 sends over and chunk 1 receives over
  for (const Stage& s : program.stages) {
    shape.num_microbatches = std::max(shape.num_microbatches, s.microbatch + 1);
    if (class_of(s.op) != OpClass::Transfer) continue;
    shape.num_chunks = std::max(shape.num_chunks, s.chunk + 1);
    (s.phase == Phase::Forward ? forward : backward) = true;
    if (s.phase != Phase::Forward) continue;
    if (s.chunk == 0 && kernel_of(s.op) == KernelKind::send) sent = s.part;
    if (s.chunk == 1 && kernel_of(s.op) == KernelKind::receive) received = s.part;
  }
  if (!forward || !backward || !sent || !received) return std::nullopt;
  shape.rank = *sent;
  shape.num_ranks = *received + 1 - *sent;
  return shape;
}

// Where a stage goes: halves of rounds in turn; in one what is computed, what is sent, what is received, what belongs to
// the step.
enum Part { kComputed, kSent, kReceived, kOfStep };
using Place = std::tuple<int, Part, StageId>;

}  // namespace

bool is_interleaved(const Program& program) { return interleaved_shape(program).has_value(); }

Program chain_messages(Program program) {
  const std::optional<PipelineShape> shape = interleaved_shape(program);
  PLEAT_CHECK(shape, "program {} is no step of an interleaved pipeline", program.name);
  const std::vector<Slot> order = pipeline_order(*shape);
  const PipelineRounds rounds(*shape);
  const auto half_of = [&](int rank, const Slot& slot) {
    return 2 * rounds.round(rank, slot) + (slot.forward ? 0 : 1);
  };
  std::vector<Place> places;
  size_t next = 0;
  int half = -1;
  for (const Turn& turn : turns(program)) {
    const Slot slot{turn.forward, turn.microbatch, turn.chunk};
    if (turn.microbatch >= 0) {
      PLEAT_CHECK(next < order.size() && slot == order[next],
                  "{}: turn {} is not that of an interleaved pipeline",
                  stage_name(program.stages[size_t(turn.begin)]), next);
      half = half_of(shape->rank, slot);
      ++next;
    }
    for (StageId s = turn.begin; s < turn.end; ++s) {
      const KernelKind kind = kernel_of(program.stages[static_cast<size_t>(s)].op);
      if (turn.microbatch < 0) {
        places.emplace_back(half, kOfStep, s);
      } else if (kind == KernelKind::receive) {
        const Producer from = producer_of(*shape, slot);
        places.emplace_back(half_of(from.rank, from.slot), kReceived, s);
      } else {
        places.emplace_back(half, kind == KernelKind::send ? kSent : kComputed, s);
      }
    }
  }
  PLEAT_CHECK(next == order.size(), "program {} has {} turns, needed {}", program.name, next, order.size());
  std::sort(places.begin(), places.end());
  std::vector<StageId> list;
  for (const Place& place : places) list.push_back(std::get<2>(place));
  return reordered(std::move(program), list);
}

}  // namespace pleat::schedule
