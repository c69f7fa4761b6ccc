#include "interpret/simulate/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/counted.h"
#include "interpret/simulate/simulate.h"
#include "program/signature.h"
#include "program/turns.h"

namespace pleat::interpret {

using namespace program;

namespace {

// The stage that stands for a turn in the grid: the first on the compute lane that needs what the turn
// receives, or the first at all where it receives nothing; -1 where it computes nothing.
std::vector<StageId> heads_of(const Program& program, const std::vector<Turn>& list) {
  std::map<std::tuple<int, int, bool>, ValueId> receives;  // a receive may stand ahead of its turn
  for (const Stage& stage : program.stages)
    if (kernel_of(stage.op) == KernelKind::receive)
      receives[{stage.microbatch, stage.chunk, stage.phase == Phase::Forward}] =
          signature::receive::Forward<Use>(stage.uses).y.value;
  std::vector<StageId> out;
  for (const Turn& turn : list) {
    const auto own = receives.find({turn.microbatch, turn.chunk, turn.forward});
    const ValueId received = own == receives.end() ? kNoValue : own->second;
    StageId head = -1;
    bool found = false;
    for (StageId s = turn.begin; s < turn.end && turn.microbatch >= 0 && !found; ++s) {
      const Stage& stage = program.stages[static_cast<size_t>(s)];
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

// One turn as it is drawn.
struct Cell {
  Turn turn;
  int64_t start = 0, end = 0;
};

struct Cells {
  std::vector<std::vector<Cell>> nodes;
  Simulation simulation;
  bool chunks = false;  // whether some rank has several
  std::string text(const Turn& turn) const {
    return chunks ? fmt::format("{}{}.{}", turn.forward ? 'F' : 'B', turn.microbatch, turn.chunk)
                  : fmt::format("{}{}", turn.forward ? 'F' : 'B', turn.microbatch);
  }
};

Cells cells_of(const Network& network, const GridTimes& times) {
  Cells out;
  std::map<const Program*, std::vector<int64_t>> cost;
  for (const Node& node : network.nodes) {
    auto& mine = cost[node.program];
    if (!mine.empty()) continue;
    mine.assign(node.program->stages.size(), 0);
    const auto list = turns(*node.program);
    const auto heads = heads_of(*node.program, list);
    for (size_t i = 0; i < list.size(); ++i) {
      out.chunks |= list[i].chunk > 0;
      if (heads[i] >= 0)
        mine[static_cast<size_t>(heads[i])] = list[i].forward ? times.forward : times.backward;
    }
  }
  out.simulation = simulate(network, [&](const Program& program, const Stage& stage) {
    return cost.at(&program)[static_cast<size_t>(&stage - program.stages.data())];
  });
  for (size_t n = 0; n < network.nodes.size(); ++n) {
    const Program& program = *network.nodes[n].program;
    const auto list = turns(program);
    const auto heads = heads_of(program, list);
    auto& cells = out.nodes.emplace_back();
    for (size_t i = 0; i < list.size(); ++i) {
      if (heads[i] < 0) continue;
      const Span& span = out.simulation.nodes[n].timeline.spans[static_cast<size_t>(heads[i])];
      cells.push_back({list[i], span.start_ns, span.end_ns});
    }
  }
  return out;
}

}  // namespace

std::string grid(const Network& network, const GridTimes& times) {
  const Cells all = cells_of(network, times);
  const int64_t steps = all.simulation.step_ns;
  size_t width = 2, label = 4;
  for (size_t n = 0; n < all.nodes.size(); ++n) {
    label = std::max(label, network.nodes[n].name.size());
    for (const Cell& cell : all.nodes[n]) width = std::max(width, all.text(cell.turn).size());
  }
  std::string out = fmt::format("{:<{}}", "time", label);
  const auto trimmed = [](std::string line) { return line.erase(line.find_last_not_of(' ') + 1) + "\n"; };
  for (int64_t t = 0; t < steps; ++t) out += fmt::format(" {:<{}}", t, width);
  out = trimmed(std::move(out));
  for (size_t n = 0; n < all.nodes.size(); ++n) {
    std::vector<std::string> cells(static_cast<size_t>(steps), ".");
    for (const Cell& cell : all.nodes[n])
      for (int64_t t = cell.start; t < cell.end; ++t) cells[static_cast<size_t>(t)] = all.text(cell.turn);
    std::string line = fmt::format("{:<{}}", network.nodes[n].name, label);
    for (const std::string& cell : cells) line += fmt::format(" {:<{}}", cell, width);
    out += trimmed(std::move(line));
  }
  out += "\n";
  for (size_t n = 0; n < all.nodes.size(); ++n) {
    const InFlight f = in_flight(turns(*network.nodes[n].program));
    out += fmt::format("{}: {} before the first backward, at most {} ({}) in flight, bubble {:.4f}\n",
                       network.nodes[n].name, base::counted(f.warm_up, "forward"),
                       base::counted(f.most_chunks, "chunk"), base::counted(f.most_layers, "layer"),
                       all.simulation.bubble(n));
  }
  return out;
}

std::string grid_svg(const Network& network, const GridTimes& times) {
  constexpr int kCell = 30, kRow = 34, kLeft = 84, kTop = 64, kMargin = 24;
  const Cells all = cells_of(network, times);
  const int64_t steps = all.simulation.step_ns;
  const int width = kLeft + kCell * static_cast<int>(steps) + kMargin;
  const int height = kTop + kRow * static_cast<int>(all.nodes.size()) + 36;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"DejaVu Sans, Verdana, sans-serif\">\n"
      "<rect width=\"{0}\" height=\"{1}\" rx=\"12\" fill=\"#ffffff\" stroke=\"#d7dbe0\"/>\n"
      "<text x=\"{2}\" y=\"32\" font-size=\"15\" font-weight=\"bold\" fill=\"#1f2933\">Who computes what at "
      "which time</text>\n"
      "<text x=\"{2}\" y=\"50\" font-size=\"11\" fill=\"#5b6570\">{3}; bubble {4:.1f} %</text>\n",
      width, height, kMargin,
      all.chunks ? "forward blue, backward orange, microbatch.chunk"
                 : "forward blue, backward orange, microbatch",
      100 * all.simulation.bubble());
  // Later chunks are darker, as the layers they hold are deeper.
  static constexpr const char* kForward[] = {"#bcd7f5", "#8dbcec", "#5f9fde", "#3f83c6"};
  static constexpr const char* kBackward[] = {"#f8d3b0", "#f0b078", "#e48f48", "#c97430"};
  for (size_t n = 0; n < all.nodes.size(); ++n) {
    const int y = kTop + kRow * static_cast<int>(n);
    out += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"12\" fill=\"#36404a\">{}</text>\n", kMargin,
                       y + 19, network.nodes[n].name);
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#f1f3f5\"/>\n", kLeft,
                       y + 2, kCell * steps, kRow - 6);
    for (const Cell& cell : all.nodes[n]) {
      const size_t shade = static_cast<size_t>(std::min(cell.turn.chunk, 3));
      const int64_t x = kLeft + kCell * cell.start, w = kCell * (cell.end - cell.start);
      out += fmt::format(
          "<g class=\"turn\"><title>{}: {}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
          "rx=\"3\" "
          "fill=\"{}\" stroke=\"#ffffff\"/><text x=\"{}\" y=\"{}\" font-size=\"10.5\" fill=\"#1f2933\" "
          "text-anchor=\"middle\">{}</text></g>\n",
          network.nodes[n].name, all.text(cell.turn), x, y + 2, w, kRow - 6,
          (cell.turn.forward ? kForward : kBackward)[shade], x + w / 2, y + 20,
          all.text(cell.turn).substr(1));
    }
  }
  const int bottom = kTop + kRow * static_cast<int>(all.nodes.size()) + 16;
  for (int64_t t = 0; t <= steps; t += 5)
    out += fmt::format(
        "<text x=\"{}\" y=\"{}\" font-size=\"10\" fill=\"#8a929c\" text-anchor=\"middle\">{}</text>\n",
        kLeft + kCell * t, bottom, t);
  return out + "</svg>\n";
}

}  // namespace pleat::interpret
