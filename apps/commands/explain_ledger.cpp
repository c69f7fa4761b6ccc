#include "explain_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "cost/machine_file.h"
#include "report/table.h"
#include "schedule/node_reach.h"
#include "schedule/pass/ledger.h"

namespace pleat::apps {
namespace {

using program::Group;
using program::Space;
using schedule::LedgerRow;

// Which spaces and groups have a number in some row.
struct LedgerColumns {
  std::vector<size_t> spaces, groups;

  explicit LedgerColumns(const std::vector<LedgerRow>& rows) {
    const auto used = [&](const auto LedgerRow::*numbers, size_t i) {
      return std::any_of(rows.begin(), rows.end(), [&](const LedgerRow& r) { return (r.*numbers)[i] != 0; });
    };
    for (size_t i = 0; i < program::kNumSpaces; ++i)
      if (used(&LedgerRow::at_peak, i)) spaces.push_back(i);
    for (size_t i = 0; i < program::kNumGroups; ++i)
      if (used(&LedgerRow::sent, i)) groups.push_back(i);
  }
};

nlohmann::json ledger_json(const LedgerColumns& columns, const LedgerRow& row) {
  nlohmann::json out = {{"name", row.name},
                        {"stages", row.stages},
                        {"step_ns", row.step_ns},
                        {"at_peak", nlohmann::json::object()},
                        {"arena_bytes", nlohmann::json::object()},
                        {"sent_bytes", nlohmann::json::object()}};
  for (const size_t i : columns.spaces) {
    const std::string space(name_of(static_cast<Space>(i)));
    out["at_peak"][space] = row.at_peak[i], out["arena_bytes"][space] = row.arena[i];
  }
  for (const size_t i : columns.groups)
    out["sent_bytes"][std::string(name_of(static_cast<Group>(i)))] = row.sent[i];
  return out;
}

// Numbers in full, so that the column can be added up; a change has a sign.
std::vector<std::string> ledger_cells(const LedgerColumns& columns, const LedgerRow& row, bool is_change) {
  const auto text = [&](int64_t n) { return is_change ? fmt::format("{:+}", n) : fmt::format("{}", n); };
  const auto us = [&](int64_t ns) {
    return fmt::format(fmt::runtime(is_change ? "{:+.3f}" : "{:.3f}"), static_cast<double>(ns) / 1e3);
  };
  std::vector<std::string> out = {row.name, text(row.stages)};
  for (const size_t i : columns.spaces)
    out.push_back(text(row.at_peak[i])), out.push_back(text(row.arena[i]));
  for (const size_t i : columns.groups) out.push_back(text(row.sent[i]));
  out.push_back(us(row.step_ns));
  return out;
}

std::string ledger_table(const std::vector<LedgerRow>& rows) {
  constexpr auto kRight = report::Align::Right;
  const LedgerColumns columns(rows);
  std::vector<report::Table::Column> titles = {{"pass"}, {"stages", kRight}};
  for (const size_t i : columns.spaces) {
    titles.push_back({fmt::format("{} at the peak", name_of(static_cast<Space>(i))), kRight});
    titles.push_back({fmt::format("{} arena", name_of(static_cast<Space>(i))), kRight});
  }
  for (const size_t i : columns.groups)
    titles.push_back({fmt::format("sent in {}", name_of(static_cast<Group>(i))), kRight});
  titles.push_back({"step, us", kRight});
  report::Table table(std::move(titles));
  table.add_row(ledger_cells(columns, rows.front(), false));
  for (size_t i = 1; i < rows.size(); ++i)
    table.add_row(ledger_cells(columns, schedule::change(rows[i - 1], rows[i]), true));
  table.add_rule();
  LedgerRow last = rows.back();
  last.name = "final";
  table.add_row(ledger_cells(columns, last, false));
  return table.text();
}

// One that has a rate for codes of four bits, where these are asked for.
std::string machine_for(const config::Config& config, const std::string& asked) {
  if (!asked.empty()) return asked;
  return config.precision.recipe == "nvfp4" ? "b200" : cost::kDefaultGpu;
}

}  // namespace

void explain_ledger(const config::Config& config, int64_t num_ranks, int64_t stage,
                    const std::string& machine_name, bool as_json) {
  if (stage >= config.parallel.pp)
    base::fail("--stage {}: the pipeline has stages 0 to {}", stage, config.parallel.pp - 1);
  const schedule::Ground ground =
      schedule::make_ground(cost::find_machine(machine_for(config, machine_name)));
  const cost::Machine& machine = ground.machine;
  const std::vector<LedgerRow> rows = schedule::ledger(schedule::placed_on(config, machine, num_ranks),
                                                       num_ranks, static_cast<size_t>(stage), ground);
  if (!as_json) {
    fmt::print("bytes of one rank of pipeline stage {} of {}; step simulated on machine '{}' ({})\n\n{}",
               stage, base::counted(num_ranks, "rank"), machine.name, machine.description,
               ledger_table(rows));
    return;
  }
  const LedgerColumns columns(rows);
  nlohmann::json out = {{"ranks", num_ranks}, {"stage", stage}, {"machine", machine.name}};
  for (size_t i = 0; i < rows.size(); ++i) {
    out["rows"].push_back(ledger_json(columns, rows[i]));
    if (i > 0) out["rows"].back()["change"] = ledger_json(columns, schedule::change(rows[i - 1], rows[i]));
  }
  out["final"] = ledger_json(columns, rows.back());
  fmt::print("{}\n", out.dump(1));
}

}  // namespace pleat::apps
