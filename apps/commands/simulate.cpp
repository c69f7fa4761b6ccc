#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "command.h"
#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "interpret/simulate/exchanges.h"
#include "interpret/simulate/step_parts.h"
#include "layout/nodes.h"
#include "machine_argument.h"
#include "memory_argument.h"
#include "memory_fit_json.h"
#include "model/overflow.h"
#include "program/code_rows.h"
#include "program/repeat.h"
#include "program/turns.h"
#include "report/format.h"
#include "report/run_data.h"
#include "report/table.h"
#include "schedule/node_reach.h"
#include "schedule/run_together.h"
#include "schedule/simulated_step.h"
#include "train/memory.h"
#include "train/memory_fit.h"

namespace pleat::apps {
namespace {

struct SimulateArguments {
  ConfigArgument config;
  MachineArgument machine;
  MemoryArgument memory;
  int64_t ranks = 1, stage = 0;
  std::string out, svg, load_from;
  double load = 1;
  bool json = false, exchanges = false;
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

std::string ms(int64_t ns) { return fmt::format("{:.3f} ms", static_cast<double>(ns) / 1e6); }
std::string rate_text(double v) { return v < 1000 ? fmt::format("{:.4g}", v) : fmt::format("{:.0f}", v); }
std::string bytes_text(int64_t bytes) { return report::format_bytes(static_cast<double>(bytes)); }

cost::RankLoad load_of(const SimulateArguments& a, const config::Config& config, const model::Mesh& mesh) {
  if (a.load == 1 && a.load_from.empty()) return {};
  if (config.moe.num_experts == 0) base::fail("--load and --load-from: the model has no experts");
  if (a.load_from.empty())
    return cost::drawn_load(a.load, config.moe.num_experts, mesh.ep,
                            static_cast<uint64_t>(config.train.seed));
  std::map<int, std::vector<int64_t>> loads;
  for (const report::RouterHealth& health : report::read_run(a.load_from).health)
    loads[health.layer] = health.load;
  if (loads.empty()) base::fail("--load-from {}: its log has no loads of experts", a.load_from);
  return cost::recorded_load(loads, config.moe.num_experts, mesh.ep);
}

// A step with everything that is said about it.
struct Simulated {
  config::Config config;
  schedule::Ground ground;
  schedule::RankPrograms ranks;
  program::Meeting meeting = program::Meeting::OnHost;
  interpret::NetworkReport report = {};
  std::vector<train::StageMemory> memory = {};
  train::MemoryFit fit = {};
  std::unique_ptr<schedule::SimulatedStep> step = {};
  interpret::Simulation times = {};
  cost::PriceSources sources = {};  // of every stage of the step, each once
  schedule::StepFigures figures = {};
  double build_s = 0, check_s = 0, plan_s = 0, simulate_s = 0;

  const interpret::NodeTimes& node(size_t pipeline_rank) const {
    return times.nodes[step->node_of(pipeline_rank)];
  }
};

void judge_memory(Simulated& s, int64_t num_ranks) {
  train::add_rerun(s.memory, s.config, s.ranks, num_ranks, s.ground.machine.kind);
  s.fit = train::memory_fit(s.ground.machine, schedule::ranks_per_node(s.config, s.ground.machine),
                            s.ranks.layout, s.memory);
}

// What a machine's rates mean for what is asked, where one might not think of it.
void note_rates(const config::Config& c, const cost::Machine& machine) {
  const cost::Processor& p = machine.processor;
  const std::string& recipe = c.precision.recipe;
  if (machine.kind != cost::MachineKind::Gpu) return;
  if ((recipe == "nvfp4" && p.fp4_tflops == 0) || (recipe != "none" && p.fp8_tflops == 0))
    base::fail(
        "precision.recipe = \"{}\" on machine '{}': it has no such products (processor.{} = 0); `pleat "
        "machines` "
        "lists what others have",
        recipe, machine.name, recipe == "nvfp4" ? "fp4_tflops" : "fp8_tflops");
  if (recipe == "mxfp8" && p.fp4_tflops == 0)
    fmt::print(stderr,
               "note: machine '{}' has no products with a scale for every 32 numbers, which came with FP4: "
               "priced as its "
               "other FP8 products\n",
               machine.name);
  if (c.device.kind == "cuda" && c.model.dtype == "float32")
    fmt::print(stderr,
               "note: model.dtype is \"float32\", and MFU is over the rate of float32; --set "
               "model.dtype=bfloat16 for "
               "what GPUs are used with\n");
}

std::unique_ptr<Simulated> simulated(const SimulateArguments& a) {
  schedule::Ground ground = a.machine.ground();
  a.memory.apply(ground.machine);
  config::Config config = schedule::placed_on(a.config.resolved(), ground.machine, a.ranks);
  note_carrier(a.ranks);
  if (ground.machine.kind == cost::MachineKind::Gpu && config.device.kind != "cuda")
    fmt::print(
        stderr,
        "note: device.kind is \"cpu\": these are its programs and element types on machine '{}'; --set "
        "device.kind=cuda --set model.dtype=bfloat16 for those a GPU would run\n",
        ground.machine.name);
  note_rates(config, ground.machine);
  Stopwatch watch;
  schedule::RankPrograms ranks = schedule::build_ranks(config, a.ranks);
  auto made = std::make_unique<Simulated>(
      Simulated{.config = std::move(config), .ground = std::move(ground), .ranks = std::move(ranks)});
  Simulated& s = *made;
  s.meeting = schedule::meeting_of(s.config, a.ranks);
  s.build_s = watch.lap();
  const interpret::Network network = interpret::network_of_roles(s.ranks.programs);
  s.report = schedule::require_runs_together(network, s.meeting);
  s.check_s = watch.lap();
  for (size_t i = 0; i < s.ranks.programs.size(); ++i) {
    const program::Order order(s.ranks.programs[i], *network.nodes[i].edges);
    const interpret::Plan plan = interpret::plan(s.ranks.programs[i], order);
    interpret::require_ok(interpret::check_plan(s.ranks.programs[i], plan, order),
                          fmt::format("plan of pipeline rank {}", i));
    s.memory.push_back(train::stage_memory(s.ground.machine.kind, s.ranks.mesh, s.ranks.programs[i], plan));
  }
  s.plan_s = watch.lap();
  const bool repeats = std::any_of(s.ranks.programs.begin(), s.ranks.programs.end(), program::has_repeat);
  s.ranks = schedule::written_out(std::move(s.ranks));
  s.step = std::make_unique<schedule::SimulatedStep>(
      s.config, s.ranks, s.ground, load_of(a, s.config, s.ranks.mesh), repeats ? nullptr : &network);
  s.times = s.step->run();
  s.sources = s.step->pricer().sources();
  s.simulate_s = watch.lap();
  judge_memory(s, a.ranks);
  s.figures = schedule::step_figures(s.config, a.ranks, s.ground.machine, s.times.step_ns);
  return made;
}

// What a rank of the first pipeline stage sends, by operation: how much, how long, and for how much of that
// time its compute lanes were busy with something else.
std::vector<interpret::Exchanged> exchanges_of(const Simulated& s, size_t stage) {
  return interpret::exchanges(s.ranks.programs[stage], s.node(stage).timeline,
                              [&](const program::Program& p, const program::Stage& st) {
                                return cost::sent_bytes(s.ranks.mesh, p, st);
                              });
}

void print_exchanges(const std::vector<interpret::Exchanged>& list, size_t stage) {
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
  fmt::print("\nexchanges of a rank of pipeline stage {}\n\n{}\n", stage, table.text());
}

// Which link an exchange or copy is bound by; "": work.
interpret::StepParts parts_by_link(const Simulated& s, size_t stage) {
  return interpret::step_parts(
      s.ranks.programs[stage], s.node(stage).timeline, s.times.step_ns,
      [&](const program::Program& p, const program::Stage& st) -> std::string {
        if (class_of(st.op) == program::OpClass::Host) return "waits of the host";
        if (interpret::goes_to_others(st.op)) {
          const program::StageTime t = s.step->pricer()(p, st);
          using program::Resource;
          return std::max(t.of(Resource::NetworkOut), t.of(Resource::NetworkIn)) >
                         std::max(t.of(Resource::LinkOut), t.of(Resource::LinkIn))
                     ? "exchanges over the network"
                     : "exchanges over links of a node";
        }
        return p.lanes[size_t(st.lane)].resource == "host_link" ? "copies from and to the host" : "";
      });
}

interpret::StepParts parts_by_lane(const Simulated& s, size_t stage) {
  return interpret::step_parts(s.ranks.programs[stage], s.node(stage).timeline, s.times.step_ns,
                               [](const program::Program& p, const program::Stage& st) -> std::string {
                                 const program::Lane& lane = p.lanes[size_t(st.lane)];
                                 if (lane.resource != "compute") return lane.name;
                                 return interpret::goes_to_others(st.op) ||
                                                class_of(st.op) == program::OpClass::Host
                                            ? lane.name + ", exchanges on it"
                                            : "";
                               });
}

// The pipeline stage whose lanes hold work longest.
size_t busiest(const Simulated& s) {
  size_t most = 0;
  for (size_t i = 0; i < s.ranks.programs.size(); ++i)
    if (s.node(i).busy_ns > s.node(most).busy_ns) most = i;
  return most;
}

// One sentence: the largest part of the busiest stage's step.
std::string bound_by(const Simulated& s, const interpret::StepParts& parts, size_t stage) {
  std::string what = "work of the processors";
  int64_t most = parts.work_ns;
  for (const interpret::StepPart& p : parts.parts)
    if (p.exposed_ns > most) what = p.name, most = p.exposed_ns;
  if (parts.idle_ns > most) what = "waiting for other ranks", most = parts.idle_ns;
  return fmt::format("bound by {}: {:.1f} % of the step of {}", what,
                     100 * static_cast<double>(most) / static_cast<double>(s.times.step_ns),
                     s.ranks.programs.size() == 1 ? "a rank" : fmt::format("pipeline stage {}", stage));
}

int64_t num_nodes(const Simulated& s, const SimulateArguments& a) {
  return layout::num_nodes(a.ranks, schedule::ranks_per_node(s.config, s.ground.machine));
}

// Groups that exchange something and lie on several nodes, each with how many.
nlohmann::json groups_across_nodes(const Simulated& s) {
  nlohmann::json out = nlohmann::json::object();
  for (const program::Program& p : s.ranks.programs)
    for (const program::Stage& stage : p.stages) {
      if (!interpret::goes_to_others(stage.op) || class_of(stage.op) == program::OpClass::Transfer) continue;
      const cost::GroupReach& reach = s.step->pricer().prices().reach.groups[size_t(stage.group)];
      if (reach.nodes > 1) out[std::string(name_of(stage.group))] = reach.nodes;
    }
  return out;
}

// Kernels of compute lanes by the part of the model they belong to, nanoseconds.
std::map<std::string, int64_t> work_by_part(const Simulated& s, size_t stage) {
  std::map<std::string, int64_t> out;
  const program::Program& p = s.ranks.programs[stage];
  for (const interpret::Span& span : s.node(stage).timeline.spans) {
    const program::Stage& st = p.stages[size_t(span.stage)];
    if (interpret::goes_to_others(st.op) || p.lanes[size_t(st.lane)].resource != "compute") continue;
    const std::string name{program::makes_codes(kernel_of(st.op)) ? program::kCodesRow
                                                                  : name_of(region_of(st.op))};
    out[st.replay > 0 ? name + ", computed again" : name] += span.end_ns - span.start_ns;
  }
  return out;
}

nlohmann::json parts_json(const interpret::StepParts& parts) {
  nlohmann::json out = {
      {"work_ns", parts.work_ns}, {"idle_ns", parts.idle_ns}, {"parts", nlohmann::json::array()}};
  for (const interpret::StepPart& p : parts.parts)
    out["parts"].push_back({{"name", p.name}, {"held_ns", p.held_ns}, {"exposed_ns", p.exposed_ns}});
  return out;
}

// What the chain of exchanges is measured against: the same ranks if nothing but data and lanes ordered them.
interpret::Simulation simulate_on_lanes(const Simulated& s, int64_t num_ranks) {
  const schedule::RankPrograms ranks = schedule::build_ranks(
      s.config, num_ranks, {.disabled = {"message_chain", "host_waits"}, .meeting = s.meeting});
  return schedule::SimulatedStep(s.config, ranks, s.ground, s.step->pricer().prices().load).run();
}

nlohmann::json to_json(const Simulated& s, const SimulateArguments& a) {
  const cost::PriceSources& sources = s.sources;
  nlohmann::json j = {
      {"ranks", a.ranks},
      {"machine", s.ground.machine.name},
      {"step_ms", s.figures.step_ms},
      {"tokens_per_s_per_gpu", s.figures.tokens_per_s_per_rank},
      {"model_tflops_per_gpu", s.figures.model_tflops_per_rank},
      {"mfu", s.figures.mfu},
      {"nodes", num_nodes(s, a)},
      {"bound_by", bound_by(s, parts_by_link(s, busiest(s)), busiest(s))},
      {"busiest_stage", busiest(s)},
      {"curves", s.ground.curves.source},
      {"groups_across_nodes", groups_across_nodes(s)},
      {"contention", s.ground.contention},
      {"roles", s.ranks.programs.size()},
      {"stages", s.step->network().num_stages()},
      {"messages", s.report.num_messages},
      {"collectives", s.report.num_collectives},
      {"step_ns", s.times.step_ns},
      {"bubble", s.times.bubble()},
      {"meeting", program::name_of(s.meeting)},
      {"host_waits", schedule::host_waits_of(s.ranks)},
      {"single_lane_hang", s.report.single_lane_hang},
      {"times_from",
       {{"measured_ns", sources.measured_ns},
        {"carried_ns", sources.carried_ns},
        {"curves_ns", sources.by_curve_ns},
        {"links_ns", sources.exchange_ns}}},
      {"cpu_seconds",
       {{"build", s.build_s}, {"check", s.check_s}, {"plan", s.plan_s}, {"simulate", s.simulate_s}}},
      {"peak_rss_bytes", static_cast<double>(train::process_memory().peak_bytes)}};
  add_fit(j, s.fit);
  if (s.meeting == program::Meeting::OnDevice) {
    const interpret::Simulation lanes = simulate_on_lanes(s, a.ranks);
    j["on_lanes"] = {{"step_ns", lanes.step_ns}, {"bubble", lanes.bubble()}};
  }
  for (size_t i = 0; i < s.ranks.programs.size(); ++i)
    j["pipeline"].push_back({{"stage", i},
                             {"busy_ns", s.node(i).busy_ns},
                             {"exchange_ns", s.node(i).exchange_ns},
                             {"bubble", s.times.bubble(s.step->node_of(i))},
                             {"arena_bytes", s.memory[i].device.arena_bytes},
                             {"window_bytes", s.memory[i].device.window_bytes},
                             {"pinned_bytes", s.memory[i].host_bytes},
                             {"staging_bytes", s.memory[i].staging_bytes},
                             {"exchange_bytes", s.memory[i].device.exchange_bytes},
                             {"memory_bytes", s.memory[i].device.total()},
                             {"over_bytes", s.fit.device_over[i]},
                             {"work_by_part", work_by_part(s, i)},
                             {"by_link", parts_json(parts_by_link(s, i))},
                             {"by_lane", parts_json(parts_by_lane(s, i))}});
  if (a.exchanges)
    for (const interpret::Exchanged& e : exchanges_of(s, size_t(a.stage)))
      j["exchanges"].push_back({{"name", e.name},
                                {"phase", e.phase},
                                {"group", e.group},
                                {"lane", e.lane},
                                {"calls", e.calls},
                                {"sent_bytes", e.bytes},
                                {"ns", e.ns},
                                {"hidden_ns", e.hidden_ns}});
  return j;
}

void print_parts(const Simulated& s, size_t stage) {
  constexpr auto kRight = report::Align::Right;
  report::Table table({{"time of a step"}, {"under way", kRight}, {"shows", kRight}, {"", kRight}});
  const auto share = [&](int64_t ns) {
    return fmt::format("{:.1f} %", 100 * static_cast<double>(ns) / static_cast<double>(s.times.step_ns));
  };
  const interpret::StepParts links = parts_by_link(s, stage);
  table.add_row({"work of the processor", ms(links.work_ns), ms(links.work_ns), share(links.work_ns)});
  for (const interpret::StepPart& p : links.parts)
    table.add_row({p.name, ms(p.held_ns), ms(p.exposed_ns), share(p.exposed_ns)});
  table.add_row({"nothing: waits for other ranks", "", ms(links.idle_ns), share(links.idle_ns)});
  const interpret::StepParts lanes = parts_by_lane(s, stage);
  if (!lanes.parts.empty()) {
    table.add_rule();
    for (const interpret::StepPart& p : lanes.parts)
      table.add_row({"lane " + p.name, ms(p.held_ns), ms(p.exposed_ns), share(p.exposed_ns)});
  }
  report::Table work({{"work of the processor"}, {"time", kRight}, {"", kRight}});
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [name, ns] : work_by_part(s, stage)) order.emplace_back(-ns, name);
  std::sort(order.begin(), order.end());
  for (const auto& [minus, name] : order) work.add_row({name, ms(-minus), share(-minus)});
  fmt::print("{}\n{}{}\n", table.text(), work.text(), bound_by(s, links, stage));
  if (const nlohmann::json across = groups_across_nodes(s); !across.empty()) {
    std::string list;
    for (const auto& [name, nodes] : across.items())
      list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", name, nodes.get<int64_t>());
    fmt::print("groups on several nodes, and on how many: {}\n", list);
  }
  fmt::print("\n");
}

// "bfloat16, products of layers in fp8".
std::string types_text(const config::Config& c) {
  return c.precision.recipe == "none"
             ? c.model.dtype
             : fmt::format("{}, products of layers in {}", c.model.dtype, c.precision.recipe);
}

void print_page(const Simulated& s, const SimulateArguments& a) {
  const cost::Machine& m = s.ground.machine;
  const bool cpu = m.kind == cost::MachineKind::Cpu;
  const char* unit = cpu ? "rank" : "GPU";
  fmt::print(
      "{} on machine '{}' ({}), {}; {}\n"
      "step {:.3f} ms; {} tokens/s/{}; {:.4g} model TFLOP/s/{}, MFU {:.1f} %; bubble {:.4f} (waiting / "
      "working)\n"
      "memory {}\n{}\n",
      base::counted(a.ranks, "rank"), m.name, m.description, base::counted(num_nodes(s, a), "node"),
      types_text(s.config), s.figures.step_ms, rate_text(s.figures.tokens_per_s_per_rank), unit,
      s.figures.model_tflops_per_rank, unit, 100 * s.figures.mfu, s.times.bubble(), s.fit.text,
      s.fit.host_text.empty() ? "" : s.fit.host_text + "\n");
  constexpr auto kRight = report::Align::Right;
  report::Table table({{"stage"},
                       {"stages", kRight},
                       {"compute lanes", kRight},
                       {"of all exchanges", kRight},
                       {"bubble", kRight},
                       {"in flight", kRight},
                       {"arena", kRight},
                       {"windows", kRight},
                       {"pinned", kRight},
                       {"over the limit", kRight}});
  for (size_t i = 0; i < s.ranks.programs.size(); ++i) {
    const auto flight = program::in_flight(program::turns(s.ranks.programs[i]));
    table.add_row({fmt::format("{}", i), fmt::format("{}", s.ranks.programs[i].stages.size()),
                   ms(s.node(i).busy_ns), ms(s.node(i).exchange_ns),
                   fmt::format("{:.4f}", s.times.bubble(s.step->node_of(i))),
                   fmt::format("{}", flight.most_chunks), bytes_text(s.memory[i].device.arena_bytes),
                   bytes_text(s.memory[i].device.window_bytes), bytes_text(s.memory[i].host_bytes),
                   s.fit.device_over[i] > 0 ? bytes_text(s.fit.device_over[i]) : "-"});
  }
  fmt::print("{}\n", table.text());
  print_parts(s, busiest(s));
  if (a.exchanges) print_exchanges(exchanges_of(s, size_t(a.stage)), size_t(a.stage));
  if (s.report.num_messages + s.report.num_collectives == 0)
    fmt::print("pipeline stages exchange nothing, nothing can hang\n");
  else
    fmt::print("{} and {} between pipeline stages fit together, nothing can hang\n",
               base::counted(s.report.num_messages, "message"),
               base::counted(s.report.num_collectives, "collective"));
  if (s.meeting == program::Meeting::OnDevice) {
    const interpret::Simulation lanes = simulate_on_lanes(s, a.ranks);
    fmt::print(
        "{}with every exchange on a lane of its own kind, and no host that waits: step {}, bubble {:.4f}; "
        "the chain takes {:+.1f} %\n",
        schedule::meeting_text(s.ranks, s.meeting), ms(lanes.step_ns), lanes.bubble(),
        100 * (static_cast<double>(s.times.step_ns) / static_cast<double>(lanes.step_ns) - 1));
  }
  if (!s.report.single_lane_hang.empty())
    fmt::print("with a single lane for all communication it would hang: {}\n", s.report.single_lane_hang);
  const cost::PriceSources& from = s.sources;
  const double kernels = from.measured_ns + from.carried_ns + from.by_curve_ns;
  fmt::print("times of kernels: {:.0f} % measured, {:.0f} % carried over from {}, {:.0f} % by curves ({})\n",
             100 * from.measured_ns / kernels, 100 * from.carried_ns / kernels,
             s.ground.costs_are_carried ? fmt::format("'{}'", s.ground.costs->machine.gpu) : "other sizes",
             100 * from.by_curve_ns / kernels, s.ground.curves.source);
  fmt::print("{} as {}, {}: built in {:.2f} s; check {:.2f} s, plan {:.2f} s, simulate {:.2f} s; peak {}\n",
             base::counted(a.ranks, "rank"),
             base::counted(static_cast<int64_t>(s.ranks.programs.size()), "role"),
             base::counted(s.step->network().num_stages(), "stage"), s.build_s, s.check_s, s.plan_s,
             s.simulate_s, report::format_bytes(static_cast<double>(train::process_memory().peak_bytes)));
}

int simulate_ranks(const SimulateArguments& a) {
  const std::unique_ptr<Simulated> made = simulated(a);
  const Simulated& s = *made;
  if (a.stage >= static_cast<int64_t>(s.ranks.programs.size()))
    base::fail("--stage {}: the pipeline has stages 0 to {}", a.stage, s.ranks.programs.size() - 1);
  if (!a.out.empty()) {
    std::vector<interpret::NamedTimeline> nodes;
    const interpret::Network& network = s.step->network();
    for (size_t i = 0; i < s.times.nodes.size(); ++i)
      nodes.push_back({network.nodes[i].name, network.nodes[i].program, &s.times.nodes[i].timeline});
    write_text(a.out, interpret::to_chrome_json(nodes));
  }
  if (!a.svg.empty())
    write_text(a.svg, interpret::to_svg(s.ranks.programs[size_t(a.stage)], s.node(size_t(a.stage)).timeline));
  if (a.json) {
    fmt::print("{}\n", to_json(s, a).dump(1));
    return 0;
  }
  print_page(s, a);
  if (!a.out.empty()) fmt::print("timeline written to {}\n", a.out);
  if (!a.svg.empty()) fmt::print("picture of pipeline stage {} written to {}\n", a.stage, a.svg);
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
  add_machine_argument(*c, a->machine);
  add_memory_argument(*c, a->memory);
  c->add_option(
       "--load", a->load,
       "The fullest expert of every layer has so many times the mean, drawn anew for every layer and "
       "microbatch; the fullest rank sets the pace (default 1: balanced)")
      ->check(CLI::Range(1.0, 1e6));
  c->add_option("--load-from", a->load_from, "Instead: the loads a run has logged last, by its folder")
      ->excludes("--load");
  c->add_option("--out", a->out, "Chrome / Perfetto JSON of the timeline to write");
  c->add_option("--svg", a->svg, "Picture of the timeline of one pipeline stage to write");
  c->add_option("--stage", a->stage, "The pipeline stage of --svg and --exchanges (default 0)")
      ->check(CLI::NonNegativeNumber);
  c->add_flag("--exchanges", a->exchanges,
              "Also what ranks send to each other, by operation: bytes, time, and how much of it is hidden");
  c->add_flag("--json", a->json, "Machine-readable output");
  add_example(
      *c,
      "pleat simulate configs/tiny.toml --ranks 2 --set parallel.pp=2 --out trace.json\n"
      "  pleat simulate configs/models/qwen3-30b-a3b.toml --ranks 64 --machine h100 --set parallel.ep=8 "
      "--set device.kind=cuda");
  c->footer(
      "bubble = time a rank's compute lanes are empty / time they hold work, over the whole step with "
      "exchanges and update.\n"
      "That of `pleat explain --grid` is the schedule's own: forwards and backwards only, all alike, "
      "messages free.\n"
      "docs/simulation.md tells how times are made, formula by formula.\n\n" +
      c->get_footer());
  c->callback([a, &chosen] { chosen = [a] { return simulate_ranks(*a); }; });
}

}  // namespace pleat::apps
