#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/counted.h"
#include "base/error.h"
#include "command.h"
#include "cost/flops.h"
#include "cost/machine_file.h"
#include "cost/nccl_memory.h"
#include "interpret/check/check.h"
#include "interpret/plan/alive.h"
#include "interpret/plan/pack.h"
#include "interpret/plan/plan.h"
#include "interpret/plan/routed.h"
#include "interpret/run/device_memory.h"
#include "layout/from_config.h"
#include "memory_argument.h"
#include "memory_fit_json.h"
#include "model/overflow.h"
#include "model/parameters.h"
#include "model/state.h"
#include "program/turns.h"
#include "report/format.h"
#include "report/table.h"
#include "schedule/build.h"
#include "schedule/node_reach.h"
#include "schedule/pass/pass.h"
#include "schedule/ranks.h"
#include "schedule/run_together.h"
#include "train/memory_fit.h"

namespace pleat::apps {
namespace {

struct Row {
  std::string name;
  program::Program program;
  interpret::Plan plan;
  int host_waits = 0;
};

// The training step as built, and after every pass: what each technique moved.
std::vector<Row> rows_of(const config::Config& config) {
  schedule::fitted_mesh(config, schedule::layout_of(config, 1));  // throws what does not fit
  const auto table = model::make_parameters(config);
  std::vector<Row> rows;
  const auto note = [&](std::string name, const program::Program& program) {
    const interpret::CheckReport report = interpret::check(program);
    interpret::require_ok(report, "program after " + name);
    rows.push_back({std::move(name), program, interpret::plan(program), report.host_waits});
  };
  program::Program program = schedule::build_training_step(config, table);
  note("as built", program);
  schedule::apply_passes(std::move(program), config,
                         {.observe = [&](const schedule::Pass& pass, const program::Program& p) {
                           note(std::string(pass.name), p);
                         }});
  return rows;
}

nlohmann::json routed_json(const std::vector<interpret::RoutedRows>& routed) {
  nlohmann::json out = nlohmann::json::array();
  for (const interpret::RoutedRows& r : routed)
    out.push_back({{"layers", r.layers},
                   {"prediction", r.prediction},
                   {"expected_rows", r.expected},
                   {"budget_rows", r.budget},
                   {"maximum_rows", r.maximum},
                   {"values", r.values}});
  return out;
}

// Empty where nothing is routed.
std::string routed_text(const std::vector<interpret::RoutedRows>& routed) {
  if (routed.empty()) return "";
  constexpr auto kRight = report::Align::Right;
  report::Table table({{"routed rows of a microbatch"},
                       {"layers", kRight},
                       {"expected", kRight},
                       {"budget", kRight},
                       {"maximum", kRight},
                       {"budget / expected", kRight},
                       {"values"}});
  for (const interpret::RoutedRows& r : routed) {
    std::string names;
    size_t shown = 0;
    for (const std::string& name : r.values) {
      if (shown++ == 3) {
        names += fmt::format(", {} more", r.values.size() - 3);
        break;
      }
      names += (names.empty() ? "" : ", ") + name;
    }
    table.add_row({r.prediction ? "prediction layers" : "MoE layers", fmt::format("{}", r.layers.size()),
                   fmt::format("{}", r.expected), fmt::format("{}", r.budget), fmt::format("{}", r.maximum),
                   fmt::format("{:.3g}", double(r.budget) / double(std::max<int64_t>(r.expected, 1))),
                   names});
  }
  return "\n" + table.text();
}

struct StateBytes {
  std::string name;  // "moment1, f32"
  model::StateSlot slot;
  int64_t bytes = 0;  // as the arena holds them
};

// What the states of the optimizer take; together what their owner does.
std::vector<StateBytes> state_bytes(const config::Config& config, const program::Program& program,
                                    const interpret::Plan& plan) {
  std::vector<StateBytes> out;
  for (const model::StateSlot& slot : model::optimizer_of(config).states) {
    StateBytes& s = out.emplace_back();
    s.name = fmt::format("{}, {}{}", slot.name.substr(1), model::format_name(slot),
                         config.optimizer.state_space == "host" ? ", on the host" : "");
    s.slot = slot;
    for (size_t i = 0; i < program.values.size(); ++i)
      if (program.values[i].owner == program::Owner::Optimizer && plan.offset[i] >= 0 &&
          program.values[i].name.ends_with(slot.name))
        s.bytes += interpret::padded_bytes(program.values[i]);
  }
  return out;
}

nlohmann::json states_json(const std::vector<StateBytes>& states) {
  nlohmann::json out = nlohmann::json::array();
  for (const StateBytes& s : states)
    out.push_back({{"name", s.slot.name.substr(1)},
                   {"format", model::format_name(s.slot)},
                   {"space", program::name_of(s.slot.space)},
                   {"bytes", s.bytes}});
  return out;
}

nlohmann::json to_json(const config::Config& config, const std::vector<Row>& rows) {
  const Row& last = rows.back();
  nlohmann::json out = {
      {"arena_bytes", last.plan.arena_bytes},           {"live_peak_bytes", last.plan.live_peak_bytes},
      {"persistent_bytes", last.plan.persistent_bytes}, {"host_waits", last.host_waits},
      {"stages", last.program.stages.size()},           {"values", last.program.values.size()}};
  out["peak_stage"] =
      last.plan.peak_stage >= 0 ? program::stage_name(last.program.stages[size_t(last.plan.peak_stage)]) : "";
  for (size_t i = 0; i < last.plan.at_peak.size(); ++i) {
    const std::string owner{program::name_of(static_cast<program::Owner>(i))};
    out["memory_by_owner"][owner] = last.plan.at_peak[i];
  }
  out["optimizer_states"] = states_json(state_bytes(config, last.program, last.plan));
  for (const Row& row : rows)
    out["passes"].push_back({{"name", row.name},
                             {"arena_bytes", row.plan.arena_bytes},
                             {"live_peak_bytes", row.plan.live_peak_bytes},
                             {"pinned_bytes", row.plan.pinned.arena_bytes},
                             {"stages", row.program.stages.size()}});
  const auto count = model::count_parameters(config, model::make_parameters(config));
  out["parameters"] = {{"total", count.total}, {"active", count.active}, {"mtp", count.mtp}};
  if (config.device.kind == "cuda") {
    const interpret::DeviceMemory gpu = interpret::device_memory(last.plan);
    out["gpu_memory"] = {{"arena_bytes", gpu.arena_bytes},
                         {"context_bytes", gpu.context_bytes},
                         {"context_measured", gpu.context_measured},
                         {"total_bytes", gpu.total()}};
  }
  out["pinned_bytes"] = last.plan.pinned.arena_bytes;
  out["routed"] = routed_json(interpret::routed_rows({&last.program, 1}, config.model.num_layers));
  out["model_flops_per_token"] = cost::model_flops(config, 1, double(config.train.seq_len)).total();
  return out;
}

void print_tables(const config::Config& config, const std::vector<Row>& rows) {
  const Row& last = rows.back();
  const auto count = model::count_parameters(config, model::make_parameters(config));
  fmt::print("{} parameters, {} active per token", report::format_count(double(count.total)),
             report::format_count(double(count.active)));
  if (count.mtp > 0)
    fmt::print("; {} more in multi-token prediction", report::format_count(double(count.mtp)));
  fmt::print("\n{:.4g} GFLOP per trained token in sequences of {}\n\n",
             cost::model_flops(config, 1, double(config.train.seq_len)).total() / 1e9, config.train.seq_len);
  report::Table owners({{"memory at the peak"}, {"bytes", report::Align::Right}, {"", report::Align::Right}});
  const auto add = [&](std::string name, int64_t bytes) {
    owners.add_row({std::move(name), fmt::format("{}", bytes), report::format_bytes(double(bytes))});
  };
  for (size_t i = 0; i < last.plan.at_peak.size(); ++i) {
    const auto owner = static_cast<program::Owner>(i);
    add(std::string(program::name_of(owner)), last.plan.at_peak[i]);
    if (owner == program::Owner::Optimizer)
      for (const StateBytes& s : state_bytes(config, last.program, last.plan)) add("  " + s.name, s.bytes);
  }
  owners.add_rule();
  owners.add_row({"live at the peak", fmt::format("{}", last.plan.live_peak_bytes),
                  report::format_bytes(double(last.plan.live_peak_bytes))});
  owners.add_row({"arena (allocated)", fmt::format("{}", last.plan.arena_bytes),
                  report::format_bytes(double(last.plan.arena_bytes))});
  const auto add_pinned = [&] { add("pinned memory of the host", last.plan.pinned.arena_bytes); };
  if (config.device.kind != "cuda") {
    if (last.plan.pinned.arena_bytes > 0) add_pinned();
    fmt::print("{}\n", owners.text());
  } else {
    const interpret::DeviceMemory gpu = interpret::device_memory(last.plan);
    add("all of the GPU's memory", gpu.total());
    add_pinned();
    add("staging on the host", interpret::staging_bytes(last.plan));
    fmt::print("{}GPU memory: {}\n\n", owners.text(), interpret::describe(gpu));
  }
  if (last.plan.peak_stage >= 0)
    fmt::print("peak at stage {} of {}: {}\n", last.plan.peak_stage, last.program.stages.size(),
               program::stage_name(last.program.stages[size_t(last.plan.peak_stage)]));
  fmt::print("arena / live peak {:.4f}; host waits per step: {}\n\n",
             double(last.plan.arena_bytes) / double(last.plan.live_peak_bytes), last.host_waits);
  const bool pinned =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.plan.pinned.arena_bytes > 0; });
  std::vector<report::Table::Column> titles = {{"after"},
                                               {"stages", report::Align::Right},
                                               {"live peak", report::Align::Right},
                                               {"arena", report::Align::Right},
                                               {"arena change", report::Align::Right}};
  if (pinned) titles.push_back({"pinned", report::Align::Right});
  report::Table passes(std::move(titles));
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> cells = {
        rows[i].name, fmt::format("{}", rows[i].program.stages.size()),
        report::format_bytes(double(rows[i].plan.live_peak_bytes)),
        report::format_bytes(double(rows[i].plan.arena_bytes)),
        i == 0 ? ""
               : fmt::format(
                     "{:+.1f} %",
                     100.0 * (double(rows[i].plan.arena_bytes) / double(rows[i - 1].plan.arena_bytes) - 1))};
    if (pinned) cells.push_back(report::format_bytes(double(rows[i].plan.pinned.arena_bytes)));
    passes.add_row(std::move(cells));
  }
  fmt::print("{}{}", passes.text(),
             routed_text(interpret::routed_rows({&last.program, 1}, config.model.num_layers)));
}

struct RanksReport {
  nlohmann::json rows = nlohmann::json::array();
  std::string table, tensors;
};

// What every pipeline rank holds, on each of the ranks of its stage.
RanksReport report_ranks(const config::Config& config, const schedule::RankPrograms& ranks,
                         int64_t tensors_of, std::vector<train::StageMemory>* memory = nullptr,
                         cost::MachineKind kind = cost::MachineKind::Cpu) {
  const interpret::Network network = interpret::network_of_roles(ranks.programs);
  schedule::require_runs_together(network, schedule::meeting_of(config, ranks.layout.world()));
  if (tensors_of >= static_cast<int64_t>(ranks.programs.size()))
    base::fail("--tensors {}: the pipeline has stages 0 to {}", tensors_of, ranks.programs.size() - 1);
  RanksReport out;
  report::Table table({{"stage"},
                       {"weights", report::Align::Right},
                       {"gradients", report::Align::Right},
                       {"optimizer", report::Align::Right},
                       {"activations", report::Align::Right},
                       {"other", report::Align::Right},
                       {"live peak", report::Align::Right},
                       {"arena", report::Align::Right},
                       {"bytes", report::Align::Right},
                       {"pinned", report::Align::Right},
                       {"stages", report::Align::Right},
                       {"layers in flight", report::Align::Right}});
  const bool gpu = config.device.kind == "cuda";
  report::Table whole({{"GPU memory of a stage"},
                       {"arena", report::Align::Right},
                       {"windows", report::Align::Right},
                       {"CUDA's own", report::Align::Right},
                       {"NCCL, estimated", report::Align::Right},
                       {"its groups", report::Align::Right},
                       {"together", report::Align::Right}});
  for (size_t i = 0; i < ranks.programs.size(); ++i) {
    const program::Program& p = ranks.programs[i];
    const std::string what = fmt::format("program of pipeline rank {}", i);
    interpret::require_ok(interpret::check(p), what);
    const program::Order order(p, *network.nodes[i].edges);
    const interpret::Plan plan = interpret::plan(p, order);
    interpret::require_ok(interpret::check_plan(p, plan, order), "plan of " + what);
    if (memory) memory->push_back(train::stage_memory(kind, ranks.mesh, p, plan));
    const program::InFlight flight = program::in_flight(program::turns(p));
    const auto owner = [&](program::Owner o) { return plan.at_peak[static_cast<size_t>(o)]; };
    using program::Owner;
    int64_t other = 0;
    for (const Owner o : {Owner::Routing, Owner::Workspace, Owner::Inputs, Owner::Results}) other += owner(o);
    const auto text = [](int64_t bytes) { return report::format_bytes(double(bytes)); };
    table.add_row({fmt::format("{}", i), text(owner(Owner::Weights)), text(owner(Owner::Gradients)),
                   text(owner(Owner::Optimizer)), text(owner(Owner::Activations)), text(other),
                   text(plan.live_peak_bytes), text(plan.arena_bytes), fmt::format("{}", plan.arena_bytes),
                   text(plan.pinned.arena_bytes), fmt::format("{}", p.stages.size()),
                   fmt::format("{}", flight.most_layers)});
    nlohmann::json row = {{"stage", i},
                          {"arena_bytes", plan.arena_bytes},
                          {"live_peak_bytes", plan.live_peak_bytes},
                          {"persistent_bytes", plan.persistent_bytes},
                          {"pinned_bytes", plan.pinned.arena_bytes},
                          {"stages", p.stages.size()},
                          {"layers_in_flight", flight.most_layers}};
    for (size_t o = 0; o < plan.at_peak.size(); ++o)
      row["memory_by_owner"][std::string(program::name_of(static_cast<Owner>(o)))] = plan.at_peak[o];
    row["optimizer_states"] = states_json(state_bytes(config, p, plan));
    if (gpu) {
      const cost::NcclMemory nccl = cost::nccl_memory(ranks.mesh, p);
      interpret::DeviceMemory taken = interpret::device_memory(plan);
      taken.exchange_bytes = nccl.bytes;
      whole.add_row({fmt::format("{}", i), text(taken.arena_bytes), text(taken.window_bytes),
                     text(taken.context_bytes), text(taken.exchange_bytes),
                     fmt::format("{}", nccl.num_groups), text(taken.total())});
      row["gpu_memory"] = {
          {"arena_bytes", taken.arena_bytes},     {"window_bytes", taken.window_bytes},
          {"context_bytes", taken.context_bytes}, {"context_measured", taken.context_measured},
          {"nccl_bytes", taken.exchange_bytes},   {"nccl_groups", nccl.num_groups},
          {"total_bytes", taken.total()}};
      row["staging_bytes"] = interpret::staging_bytes(plan);
    }
    if (static_cast<int64_t>(i) == tensors_of) {
      report::Table alive({{"alive at the peak"},
                           {"owner"},
                           {"count", report::Align::Right},
                           {"bytes", report::Align::Right},
                           {"", report::Align::Right}});
      for (const interpret::AliveTensors& t : interpret::alive_at_peak(p, order, plan)) {
        alive.add_row({t.what, std::string(program::name_of(t.owner)), fmt::format("{}", t.count),
                       fmt::format("{}", t.bytes), text(t.bytes)});
        row["tensors"].push_back(
            {{"name", t.what}, {"owner", program::name_of(t.owner)}, {"count", t.count}, {"bytes", t.bytes}});
      }
      alive.add_rule();
      alive.add_row(
          {"live peak", "", "", fmt::format("{}", plan.live_peak_bytes), text(plan.live_peak_bytes)});
      out.tensors = "\n" + alive.text();
    }
    out.rows.push_back(row);
  }
  out.table = table.text();
  if (gpu) out.table += "\n" + whole.text();
  return out;
}

// Whether that fits the machine; nothing is said without one.
struct Verdict {
  std::optional<cost::Machine> machine;
  train::MemoryFit fit;

  Verdict(const std::string& name, const MemoryArgument& memory) {
    if (name.empty() && memory.given())
      base::fail("--device-memory and --host-memory need --machine: whose they are in place of");
    if (name.empty()) return;
    machine = cost::find_machine(name);
    memory.apply(*machine);
  }
  cost::MachineKind kind() const { return machine ? machine->kind : cost::MachineKind::Cpu; }
  void judge(const config::Config& config, const layout::Layout& layout,
             const std::vector<train::StageMemory>& memory) {
    if (machine)
      fit = train::memory_fit(*machine, schedule::ranks_per_node(config, *machine), layout, memory);
  }
  void add_to(nlohmann::json& out) const {
    if (machine) add_fit(out, fit);
  }
  // Behind everything else: what does not fit is an error.
  int end(bool as_json) const {
    if (!machine) return 0;
    if (!fit.fits())
      base::fail_with(base::ExitCode::Hardware, "on machine '{}' the step {}", machine->name, fit.text);
    if (!as_json)
      fmt::print("\non machine '{}' the step {}\n{}", machine->name, fit.text,
                 fit.host_text.empty() ? "" : fit.host_text + "\n");
    return 0;
  }
};

int plan_ranks(const config::Config& asked, int64_t num_ranks, int64_t tensors_of, bool as_json,
               Verdict verdict) {
  note_carrier(num_ranks);
  const config::Config config =
      verdict.machine ? schedule::placed_on(asked, *verdict.machine, num_ranks) : asked;
  const schedule::RankPrograms ranks = schedule::build_ranks(config, num_ranks);
  std::vector<train::StageMemory> memory;
  const RanksReport step = report_ranks(config, ranks, tensors_of, &memory, verdict.kind());
  const auto routed = interpret::routed_rows(ranks.programs, config.model.num_layers);
  const program::Meeting meeting = schedule::meeting_of(config, num_ranks);
  nlohmann::json out = {{"ranks", num_ranks},
                        {"meeting", program::name_of(meeting)},
                        {"host_waits", schedule::host_waits_of(ranks)},
                        {"exchange", model::name_of(ranks.mesh.exchange)},
                        {"pipeline", step.rows},
                        {"routed", routed_json(routed)}};
  std::string again;
  if (model::may_rerun(config, ranks.programs)) {
    // Both programs lie in one arena, as large as the larger.
    const config::Config wide = model::rerun_config(config);
    std::vector<train::StageMemory> wide_memory;
    const RanksReport rerun =
        report_ranks(wide, schedule::build_ranks(wide, num_ranks), -1, &wide_memory, verdict.kind());
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = train::larger(memory[i], wide_memory[i]);
    out["pipeline_rerun"] = rerun.rows;
    again = "\na step past its budget, run again with experts recomputed\n\n" + rerun.table;
  }
  verdict.judge(config, ranks.layout, memory);
  verdict.add_to(out);
  if (as_json) {
    fmt::print("{}\n", out.dump(1));
    return verdict.end(as_json);
  }
  fmt::print("{}, {} to a pipeline stage; memory of one rank at the peak of its step\n{}\n{}{}{}{}",
             base::counted(num_ranks, "rank"), num_ranks / ranks.mesh.pp,
             schedule::meeting_text(ranks, meeting), step.table, step.tensors, routed_text(routed), again);
  return verdict.end(as_json);
}

}  // namespace

void add_plan(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<ConfigArgument>();
  auto json = std::make_shared<bool>(false);
  auto ranks = std::make_shared<int64_t>(0), tensors = std::make_shared<int64_t>(-1);
  auto machine = std::make_shared<std::string>();
  auto memory = std::make_shared<MemoryArgument>();
  CLI::App* c = &command;
  add_config_argument(*c, *a);
  c->add_flag("--json", *json, "Machine-readable output");
  c->add_option("--ranks", *ranks,
                "A row per pipeline stage of this many ranks, laid out as [parallel] says (default: the "
                "fewest that can be)")
      ->check(CLI::PositiveNumber);
  c->add_option("--tensors", *tensors, "With --ranks: what is alive at the peak of this pipeline stage")
      ->check(CLI::NonNegativeNumber);
  c->add_option("--machine", *machine,
                "Also say whether it fits: a name (`pleat machines` lists them) or a .toml file; a step that "
                "does not is an error");
  add_memory_argument(*c, *memory);
  add_example(*c,
              "pleat plan configs/demo.toml --set recompute.modules='[\"activation\",\"norm\"]'\n"
              "  pleat plan configs/demo.toml --ranks 8 --set parallel.pp=4 --set parallel.ep=2");
  c->callback([a, json, ranks, tensors, machine, memory, &chosen] {
    chosen = [a, json, ranks, tensors, machine, memory] {
      const config::Config config = a->resolved();
      Verdict verdict(*machine, *memory);
      if (*tensors >= 0 && *ranks == 0) base::fail("--tensors needs --ranks");
      if (*ranks > 0) return plan_ranks(config, *ranks, *tensors, *json, std::move(verdict));
      if (const int64_t least = layout::least_ranks(config); least > 1) {
        if (!*json)
          fmt::print("--ranks is not given: {}, the fewest that [parallel] can be laid out on\n", least);
        return plan_ranks(config, least, *tensors, *json, std::move(verdict));
      }
      const auto rows = rows_of(config);
      verdict.judge(config, schedule::layout_of(config, 1),
                    {train::stage_memory(verdict.kind(), {}, rows.back().program, rows.back().plan)});
      if (*json) {
        nlohmann::json out = to_json(config, rows);
        verdict.add_to(out);
        fmt::print("{}\n", out.dump(1));
      } else {
        print_tables(config, rows);
      }
      return verdict.end(*json);
    };
  });
}

}  // namespace pleat::apps
