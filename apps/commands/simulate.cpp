#include <CLI/CLI.hpp>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "command.h"
#include "cost/machine.h"
#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "interpret/simulate/exchanges.h"
#include "interpret/simulate/simulate.h"
#include "program/turns.h"
#include "report/format.h"
#include "report/table.h"
#include "schedule/node_reach.h"
#include "schedule/run_together.h"
#include "train/memory.h"

namespace pleat::apps {
namespace {

struct SimulateArguments {
  ConfigArgument config;
  int64_t ranks = 1;
  std::string out;
  bool json = false, exchanges = false;
  double tflops = 0, near_gb = 0, far_gb = 0;
};

// Seconds of one core: what it costs whatever else the machine does.
class Stopwatch {
 public:
  double lap() {
    const std::clock_t now = std::clock();
    const double s = static_cast<double>(now - last_) / CLOCKS_PER_SEC;
    last_ = now;
    return s;
  }

 private:
  std::clock_t last_ = std::clock();
};

// What a rank of the first pipeline stage sends, by operation: how much, how long, and for how much of that
// time its compute lanes were busy with something else.
std::vector<interpret::Exchanged> exchanges_of(const schedule::RankPrograms& ranks,
                                               const interpret::Simulation& s) {
  return interpret::exchanges(ranks.programs[0], s.nodes[0].timeline,
                              [&](const program::Program& p, const program::Stage& stage) {
                                return cost::sent_bytes(ranks.mesh, p, stage);
                              });
}

void print_exchanges(const std::vector<interpret::Exchanged>& list) {
  report::Table table({{"exchange"},
                       {"phase"},
                       {"group"},
                       {"lane"},
                       {"calls", report::Align::Right},
                       {"sent by a rank", report::Align::Right},
                       {"time", report::Align::Right},
                       {"hidden", report::Align::Right}});
  const auto us = [](int64_t ns) { return fmt::format("{:.1f} us", static_cast<double>(ns) / 1e3); };
  interpret::Exchanged all;
  for (const interpret::Exchanged& e : list) {
    table.add_row({e.name, e.phase, e.group, e.lane, fmt::format("{}", e.calls),
                   report::format_bytes(e.bytes), us(e.ns), us(e.hidden_ns)});
    all.calls += e.calls, all.bytes += e.bytes, all.ns += e.ns, all.hidden_ns += e.hidden_ns;
  }
  table.add_rule();
  table.add_row({"all", "", "", "", fmt::format("{}", all.calls), report::format_bytes(all.bytes), us(all.ns),
                 us(all.hidden_ns)});
  fmt::print("\nexchanges of a rank of pipeline stage 0\n\n{}\n", table.text());
}

// What the chain of exchanges is measured against: the same ranks if nothing but data and lanes ordered them.
interpret::Simulation simulate_on_lanes(const config::Config& config, int64_t num_ranks,
                                        const interpret::Duration& duration) {
  const schedule::RankPrograms ranks = schedule::build_ranks(
      config, num_ranks,
      {.disabled = {"message_chain", "host_waits"}, .meeting = schedule::meeting_of(config, num_ranks)});
  return interpret::simulate(interpret::network_of_roles(ranks.programs), duration);
}

int simulate_ranks(const SimulateArguments& a) {
  const config::Config config = a.config.resolved();
  cost::Machine machine = cost::toy_machine();
  if (a.tflops > 0) machine.flops_per_ns = a.tflops * 1e3;
  if (a.near_gb > 0) machine.near.bytes_per_ns = a.near_gb;
  if (a.far_gb > 0) machine.far.bytes_per_ns = a.far_gb;

  note_carrier(a.ranks);
  Stopwatch watch;
  const schedule::RankPrograms ranks = schedule::build_ranks(config, a.ranks);
  const program::Meeting meeting = schedule::meeting_of(config, a.ranks);
  machine = schedule::with_nodes(std::move(machine), config, ranks.layout);
  const double build_s = watch.lap();
  const interpret::Network network = interpret::network_of_roles(ranks.programs);
  const interpret::NetworkReport report = schedule::require_runs_together(network, meeting);
  const double check_s = watch.lap();
  std::vector<interpret::Plan> plans;
  for (size_t i = 0; i < ranks.programs.size(); ++i) {
    const program::Order order(ranks.programs[i], *network.nodes[i].edges);
    plans.push_back(interpret::plan(ranks.programs[i], order));
    interpret::require_ok(interpret::check_plan(ranks.programs[i], plans.back(), order),
                          fmt::format("plan of pipeline rank {}", i));
  }
  const double plan_s = watch.lap();
  const auto duration = [&](const program::Program& p, const program::Stage& stage) {
    return cost::stage_ns(machine, ranks.mesh, p, stage);
  };
  const interpret::Simulation s = interpret::simulate(network, duration);
  const double simulate_s = watch.lap();

  if (!a.out.empty()) {
    std::vector<interpret::NamedTimeline> nodes;
    for (size_t i = 0; i < s.nodes.size(); ++i)
      nodes.push_back({network.nodes[i].name, network.nodes[i].program, &s.nodes[i].timeline});
    write_text(a.out, interpret::to_chrome_json(nodes));
  }
  const double peak = static_cast<double>(train::process_memory().peak_bytes);
  if (a.json) {
    nlohmann::json j = {
        {"ranks", a.ranks},
        {"roles", ranks.programs.size()},
        {"stages", network.num_stages()},
        {"messages", report.num_messages},
        {"collectives", report.num_collectives},
        {"step_ns", s.step_ns},
        {"bubble", s.bubble()},
        {"meeting", program::name_of(meeting)},
        {"host_waits", schedule::host_waits_of(ranks)},
        {"single_lane_hang", report.single_lane_hang},
        {"cpu_seconds", {{"build", build_s}, {"check", check_s}, {"plan", plan_s}, {"simulate", simulate_s}}},
        {"peak_rss_bytes", peak}};
    if (meeting == program::Meeting::OnDevice) {
      const interpret::Simulation lanes = simulate_on_lanes(config, a.ranks, duration);
      j["on_lanes"] = {{"step_ns", lanes.step_ns}, {"bubble", lanes.bubble()}};
    }
    for (size_t i = 0; i < s.nodes.size(); ++i)
      j["pipeline"].push_back({{"stage", i},
                               {"busy_ns", s.nodes[i].busy_ns},
                               {"exchange_ns", s.nodes[i].exchange_ns},
                               {"bubble", s.bubble(i)},
                               {"arena_bytes", plans[i].arena_bytes}});
    if (a.exchanges)
      for (const interpret::Exchanged& e : exchanges_of(ranks, s))
        j["exchanges"].push_back({{"name", e.name},
                                  {"phase", e.phase},
                                  {"group", e.group},
                                  {"lane", e.lane},
                                  {"calls", e.calls},
                                  {"sent_bytes", e.bytes},
                                  {"ns", e.ns},
                                  {"hidden_ns", e.hidden_ns}});
    fmt::print("{}\n", j.dump(1));
    return 0;
  }
  report::Table table({{"stage"},
                       {"stages", report::Align::Right},
                       {"compute lanes", report::Align::Right},
                       {"of all exchanges", report::Align::Right},
                       {"bubble", report::Align::Right},
                       {"in flight", report::Align::Right},
                       {"arena", report::Align::Right}});
  const auto ms = [](int64_t ns) { return fmt::format("{:.3f} ms", static_cast<double>(ns) / 1e6); };
  for (size_t i = 0; i < s.nodes.size(); ++i) {
    const auto flight = program::in_flight(program::turns(ranks.programs[i]));
    table.add_row({fmt::format("{}", i), fmt::format("{}", ranks.programs[i].stages.size()),
                   ms(s.nodes[i].busy_ns), ms(s.nodes[i].exchange_ns), fmt::format("{:.4f}", s.bubble(i)),
                   fmt::format("{}", flight.most_chunks),
                   report::format_bytes(static_cast<double>(plans[i].arena_bytes))});
  }
  fmt::print(
      "{}\nstep {} on a {} machine ({:.0f} TFLOP/s, links {:.0f} and {:.0f} GB/s), bubble {:.4f} (waiting / "
      "working)\n",
      table.text(), ms(s.step_ns), machine.name, machine.flops_per_ns / 1e3, machine.near.bytes_per_ns,
      machine.far.bytes_per_ns, s.bubble());
  if (a.exchanges) print_exchanges(exchanges_of(ranks, s));
  if (report.num_messages + report.num_collectives == 0)
    fmt::print("pipeline stages exchange nothing, nothing can hang\n");
  else
    fmt::print("{} and {} between pipeline stages fit together, nothing can hang\n",
               base::counted(report.num_messages, "message"),
               base::counted(report.num_collectives, "collective"));
  if (meeting == program::Meeting::OnDevice) {
    const interpret::Simulation lanes = simulate_on_lanes(config, a.ranks, duration);
    fmt::print(
        "{}with every exchange on a lane of its own kind, and no host that waits: step {}, bubble {:.4f}; "
        "the "
        "chain takes {:+.1f} %\n",
        schedule::meeting_text(ranks, meeting), ms(lanes.step_ns), lanes.bubble(),
        100 * (static_cast<double>(s.step_ns) / static_cast<double>(lanes.step_ns) - 1));
  }
  if (!report.single_lane_hang.empty())
    fmt::print("with a single lane for all communication it would hang: {}\n", report.single_lane_hang);
  fmt::print(
      "{} as {}, {}: built in {:.2f} s; check {:.2f} s, plan {:.2f} s, simulate {:.2f} s; "
      "peak {}\n",
      base::counted(a.ranks, "rank"), base::counted(static_cast<int64_t>(ranks.programs.size()), "role"),
      base::counted(network.num_stages(), "stage"), build_s, check_s, plan_s, simulate_s,
      report::format_bytes(peak));
  if (!a.out.empty()) fmt::print("timeline written to {}\n", a.out);
  return 0;
}

}  // namespace

void add_simulate(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<SimulateArguments>();
  CLI::App* c = &command;
  add_config_argument(*c, a->config);
  c->add_option("--ranks", a->ranks, "Ranks, laid out as [parallel] says")
      ->required()
      ->check(CLI::PositiveNumber);
  c->add_option("--out", a->out, "Chrome / Perfetto JSON of the timeline to write");
  c->add_flag("--exchanges", a->exchanges,
              "Also what ranks send to each other, by operation: bytes, time, and how much of it is hidden");
  c->add_flag("--json", a->json, "Machine-readable output");
  const cost::Machine toy = cost::toy_machine();
  c->add_option("--tflops", a->tflops,
                fmt::format("Matrix products of a rank, TFLOP/s (default {:g})", toy.flops_per_ns / 1e3))
      ->check(CLI::PositiveNumber);
  c->add_option(
       "--near", a->near_gb,
       fmt::format("Links inside a machine, GB/s (default {:g}); without parallel.ranks_per_node those "
                   "of tensor, context and expert-tensor groups",
                   toy.near.bytes_per_ns))
      ->check(CLI::PositiveNumber);
  c->add_option("--far", a->far_gb, fmt::format("All other links, GB/s (default {:g})", toy.far.bytes_per_ns))
      ->check(CLI::PositiveNumber);
  add_example(*c, "pleat simulate configs/tiny.toml --ranks 2 --set parallel.pp=2 --out trace.json");
  c->footer(
      "bubble = time a rank's compute lanes are empty / time they hold work, over the whole step with "
      "exchanges "
      "and update.\n"
      "That of `pleat explain --grid` is the schedule's own: forwards and backwards only, all alike, "
      "messages "
      "free.\n\n" +
      c->get_footer());
  c->callback([a, &chosen] { chosen = [a] { return simulate_ranks(*a); }; });
}

}  // namespace pleat::apps
