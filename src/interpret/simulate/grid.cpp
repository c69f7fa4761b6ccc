#include "interpret/simulate/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "interpret/simulate/simulate.h"
#include "program/turns.h"

namespace pleat::interpret {

using namespace program;

namespace {

constexpr int kComputeLane = 0;

// The stage that stands for a turn in the grid: the first on the compute lane that needs what the turn
// receives, or the first at all where it receives nothing; -1 where it computes nothing.
std::vector<StageId> heads_of(const Program& program, const std::vector<Turn>& list) {
  std::vector<StageId> out;
  for (const Turn& turn : list) {
    ValueId received = kNoValue;
    StageId head = -1;
    bool found = false;
    for (StageId s = turn.begin; s < turn.end && turn.microbatch >= 0 && !found; ++s) {
      const Stage& stage = program.stages[static_cast<size_t>(s)];
      if (kernel_of(stage.op) == KernelKind::receive) received = stage.uses[0].value;
      if (stage.lane != kComputeLane) continue;
      const bool needs = received != kNoValue && std::find(stage.uses.begin(), stage.uses.end(),
                                                           Use{received, Access::Read}) != stage.uses.end();
      if (head < 0 || needs) head = s;
      found = needs || received == kNoValue;
    }
    out.push_back(head);
  }
  return out;
}

}  // namespace

std::string grid(const Network& network, const GridTimes& times) {
  std::map<const Program*, std::vector<int64_t>> cost;
  bool chunks = false;
  for (const Node& node : network.nodes) {
    auto& mine = cost[node.program];
    if (!mine.empty()) continue;
    mine.assign(node.program->stages.size(), 0);
    const auto list = turns(*node.program);
    const auto heads = heads_of(*node.program, list);
    for (size_t i = 0; i < list.size(); ++i) {
      chunks |= list[i].chunk > 0;
      if (heads[i] >= 0)
        mine[static_cast<size_t>(heads[i])] = list[i].forward ? times.forward : times.backward;
    }
  }
  const Simulation s = simulate(network, [&](const Program& program, const Stage& stage) {
    return cost.at(&program)[static_cast<size_t>(&stage - program.stages.data())];
  });

  std::vector<std::vector<std::string>> cells(network.nodes.size());
  size_t width = 2, label = 4;
  for (size_t n = 0; n < network.nodes.size(); ++n) {
    const Program& program = *network.nodes[n].program;
    const auto list = turns(program);
    const auto heads = heads_of(program, list);
    cells[n].resize(static_cast<size_t>(s.step_ns));
    label = std::max(label, network.nodes[n].name.size());
    for (size_t i = 0; i < list.size(); ++i) {
      if (heads[i] < 0) continue;
      std::string text = fmt::format("{}{}", list[i].forward ? 'F' : 'B', list[i].microbatch);
      if (chunks) text += fmt::format(".{}", list[i].chunk);
      width = std::max(width, text.size());
      const Span& span = s.nodes[n].timeline.spans[static_cast<size_t>(heads[i])];
      for (int64_t t = span.start_ns; t < span.end_ns; ++t) cells[n][static_cast<size_t>(t)] = text;
    }
  }
  std::string out = fmt::format("{:<{}}", "time", label);
  const auto trimmed = [](std::string line) { return line.erase(line.find_last_not_of(' ') + 1) + "\n"; };
  for (int64_t t = 0; t < s.step_ns; ++t) out += fmt::format(" {:<{}}", t, width);
  out = trimmed(std::move(out));
  for (size_t n = 0; n < cells.size(); ++n) {
    std::string line = fmt::format("{:<{}}", network.nodes[n].name, label);
    for (const std::string& cell : cells[n]) line += fmt::format(" {:<{}}", cell.empty() ? "." : cell, width);
    out += trimmed(std::move(line));
  }
  out += "\n";
  for (size_t n = 0; n < cells.size(); ++n) {
    const InFlight f = in_flight(turns(*network.nodes[n].program));
    out += fmt::format(
        "{}: {} forwards before the first backward, at most {} chunks ({} layers) in flight, bubble {:.4f}\n",
        network.nodes[n].name, f.warm_up, f.most_chunks, f.most_layers, s.bubble(n));
  }
  return out;
}

}  // namespace pleat::interpret
