#include "program/turns.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace pleat::program {
namespace {

bool is_backward(const Stage& s) { return s.phase != Phase::Forward || s.replay != 0; }

// Receives that stand apart from the turn they are for, which comes later (schedule/pass/message_chain.h).
std::vector<char> ahead_of_turn(const std::vector<Stage>& stages) {
  std::vector<char> out(stages.size(), 0);
  std::map<std::tuple<int, int, bool>, size_t>
      first;  // of the stages behind, per microbatch, chunk and direction
  for (size_t s = stages.size(); s-- > 0;) {
    const Stage& stage = stages[s];
    if (stage.microbatch < 0) continue;
    const auto [at, fresh] = first.try_emplace({stage.microbatch, stage.chunk, is_backward(stage)}, s);
    if (!fresh && kernel_of(stage.op) == KernelKind::receive)
      out[s] = at->second > s + 1 &&
               !(stages[s + 1].microbatch == stage.microbatch && stages[s + 1].chunk == stage.chunk);
    at->second = s;
  }
  return out;
}

int count_layers(const Program& program, StageId begin, StageId end) {
  std::vector<int> layers;
  for (StageId s = begin; s < end; ++s) {
    const int layer = program.stages[static_cast<size_t>(s)].layer;
    if (layer >= 0 && (layers.empty() || layers.back() != layer)) layers.push_back(layer);
  }
  std::sort(layers.begin(), layers.end());
  return static_cast<int>(std::unique(layers.begin(), layers.end()) - layers.begin());
}

}  // namespace

std::vector<Turn> turns(const Program& program) {
  std::vector<Turn> out;
  const auto& stages = program.stages;
  const std::vector<char> ahead = ahead_of_turn(stages);
  for (size_t begin = 0; begin < stages.size();) {
    size_t own = begin;  // a receive for a later turn is never the last stage
    while (ahead[own]) ++own;
    const Stage& first = stages[own];
    const bool of_step = first.microbatch < 0;
    size_t end = begin, last_forward = begin;
    bool forward = false, backward = false;
    for (; end < stages.size(); ++end) {
      const Stage& s = stages[end];
      if (ahead[end]) continue;
      if (s.microbatch != first.microbatch || (!of_step && s.chunk != first.chunk)) break;
      if (s.phase == Phase::Forward && s.replay == 0) {
        // A backward seen before this forward stage belongs to the same turn: the head computes its backward chunk
        // by chunk, between its forwards.
        last_forward = end, forward = true, backward = false;
      } else if (s.phase != Phase::Forward && (s.layer >= 0 || class_of(s.op) == OpClass::Transfer)) {
        backward = true;
      }
    }
    const auto add = [&](size_t from, size_t to, bool is_forward) {
      const StageId a = static_cast<StageId>(from), b = static_cast<StageId>(to);
      out.push_back(
          {a, b, first.microbatch, of_step ? 0 : first.chunk, is_forward, count_layers(program, a, b)});
    };
    if (of_step) {
      add(begin, end, false);
    } else if (forward && backward) {
      add(begin, last_forward + 1, true);
      add(last_forward + 1, end, false);
    } else {
      add(begin, end, forward);
    }
    begin = end;
  }
  return out;
}

InFlight in_flight(const std::vector<Turn>& turns) {
  InFlight out;
  int chunks = 0, layers = 0;
  bool warm = true;
  for (const Turn& turn : turns) {
    if (turn.microbatch < 0) continue;
    if (turn.forward) {
      chunks += 1, layers += turn.num_layers;
      out.warm_up += warm;
      out.most_chunks = std::max(out.most_chunks, chunks);
      out.most_layers = std::max(out.most_layers, layers);
    } else {
      chunks -= 1, layers -= turn.num_layers;
      warm = false;
    }
  }
  return out;
}

}  // namespace pleat::program
