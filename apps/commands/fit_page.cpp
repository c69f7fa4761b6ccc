#include "fit_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "report/format.h"
#include "report/table.h"

namespace pleat::apps {
namespace {

using tune::Found;

std::string size_text(int64_t bytes) { return report::format_bytes(static_cast<double>(bytes)); }

bool on_cpu(const FitQuestion& q) { return q.ground.machine.kind == cost::MachineKind::Cpu; }

std::string limits_text(const FitQuestion& q, const tune::Measured& any) {
  const std::string host = size_text(any.fit.host_limit) + " of host memory";
  return on_cpu(q) ? host : fmt::format("{} of device memory, {}", size_text(any.fit.device_limit), host);
}

// What a candidate does to the numbers: the most of any of its choices.
tune::Numbers numbers_of(const tune::Space& space, const tune::Candidate& c) {
  tune::Numbers out = tune::Numbers::Same;
  for (size_t f = 0; f < c.choice.size(); ++f)
    out = std::max(out, space.families[f].choices[c.choice[f]].numbers);
  return out;
}

// "recompute norm in 3 of 8 layers (exact): outputs of norm ..."
std::vector<std::string> words_of(const tune::Space& space, const tune::Candidate& c) {
  std::vector<std::string> out;
  for (size_t f = 0; f < c.choice.size(); ++f) {
    if (c.choice[f] == 0) continue;
    tune::Candidate one = tune::without_any(space);
    one.choice[f] = c.choice[f], one.layers[f] = c.layers[f];
    const tune::Choice& choice = space.families[f].choices[c.choice[f]];
    out.push_back(
        fmt::format("{} ({}): {}", tune::text_of(space, one), words_of(choice.numbers), choice.cost));
  }
  return out;
}

std::string rate(double v) { return v < 1000 ? fmt::format("{:.4g}", v) : fmt::format("{:.0f}", v); }

// Of the best step if memory had no end; "" where that is not known.
std::string longer_text(const tune::Answer& answer, const Found& f) {
  if (!answer.unlimited) return "";
  return fmt::format("{:+.1f} %",
                     100 * (f.measured.figures.step_ms / answer.unlimited->measured.figures.step_ms - 1));
}

std::string free_text(int64_t over) { return over > 0 ? "over by " + size_text(over) : size_text(-over); }

// `ranked`: rows have their number, and the first is the answer.
report::Table table_of(const FitQuestion& q, const tune::Answer& answer, const std::vector<Found>& rows,
                       bool ranked) {
  constexpr auto kRight = report::Align::Right;
  std::vector<report::Table::Column> columns = {{"rank"}, {"choices"}};
  if (!on_cpu(q)) columns.insert(columns.end(), {{"device", kRight}, {"free", kRight}});
  columns.push_back({"host", kRight});
  if (on_cpu(q)) columns.push_back({"free", kRight});
  columns.insert(columns.end(), {{"step", kRight},
                                 {on_cpu(q) ? "tokens/s/rank" : "tokens/s/GPU", kRight},
                                 {"MFU", kRight},
                                 {"costs", kRight},
                                 {"numbers"}});
  report::Table table(columns);
  for (size_t i = 0; i < rows.size(); ++i) {
    const tune::Measured& m = rows[i].measured;
    std::vector<std::string> cells = {ranked ? fmt::format("{}{}", i + 1, i == 0 ? " *" : "") : "-",
                                      tune::text_of(q.space, rows[i].candidate)};
    if (!on_cpu(q)) {
      cells.push_back(size_text(m.device_bytes));
      cells.push_back(free_text(m.device_over(q.ground.machine.kind)));
    }
    cells.push_back(size_text(m.fit.host_bytes));
    if (on_cpu(q)) cells.push_back(free_text(m.host_over()));
    cells.push_back(fmt::format("{:.1f} ms", m.figures.step_ms));
    cells.push_back(rate(m.figures.tokens_per_s_per_rank));
    cells.push_back(fmt::format("{:.1f} %", 100 * m.figures.mfu));
    cells.push_back(longer_text(answer, rows[i]));
    cells.emplace_back(words_of(numbers_of(q.space, rows[i].candidate)));
    table.add_row(std::move(cells));
  }
  return table;
}

std::string kept_text(const tune::Space& space) {
  std::string out;
  if (!space.kept.empty())
    out += fmt::format("kept, since you set {}: {}; --free KEY lets one go\n",
                       space.kept.size() == 1 ? "it" : "them", fmt::join(space.kept, ", "));
  if (!space.left_out.empty())
    out += fmt::format("left out by --exact: {}\n", fmt::join(space.left_out, ", "));
  return out;
}

// A table of what `train` refuses, and why; "" where there is nothing to say.
std::string not_yet_text(const FitQuestion& q, const tune::Answer& answer) {
  const tune::Answer::NotYet& n = answer.not_yet;
  if (n.rows.empty()) return "";
  std::string out =
      !n.fits ? "\nnothing that was tried fits with what `train` cannot do here yet; nearest to it:\n\n"
      : answer.rows.empty() ? "\nfits with what `train` cannot do here yet; --write does not write it:\n\n"
                            : "\nbetter with what `train` cannot do here yet; --write does not write it:\n\n";
  out += table_of(q, answer, n.rows, false).text() + "\nthe first is\n";
  for (const std::string& w : words_of(q.space, n.rows[0].candidate)) out += "- " + w + "\n";
  return out + fmt::format("and `train` says: {}\n", n.rows[0].measured.untrained);
}

nlohmann::json json_of(const FitQuestion& q, const tune::Answer& answer, const Found& f) {
  const tune::Measured& m = f.measured;
  nlohmann::json choices = nlohmann::json::array();
  for (size_t i = 0; i < f.candidate.choice.size(); ++i) {
    if (f.candidate.choice[i] == 0) continue;
    const tune::Choice& c = q.space.families[i].choices[f.candidate.choice[i]];
    choices.push_back({{"family", q.space.families[i].name},
                       {"name", c.name},
                       {"numbers", words_of(c.numbers)},
                       {"cost", c.cost}});
    if (!c.layers_key.empty()) choices.back()["layers"] = f.candidate.layers[i];
  }
  nlohmann::json keys = nlohmann::json::object();
  const config::Config before = q.space.base, after = tune::configured(q.space, f.candidate);
  for (const config::Change& change : config::changes(before, after)) keys[change.key->path] = change.after;
  nlohmann::json out = {{"choices", choices},
                        {"text", tune::text_of(q.space, f.candidate)},
                        {"keys", keys},
                        {"fits", m.fits()},
                        {"memory", m.fit.text},
                        {"device_bytes", m.device_bytes},
                        {"host_bytes", m.fit.host_bytes},
                        {"host_over_bytes", m.host_over()},
                        {"trains", m.trains()},
                        {"step_ms", m.figures.step_ms},
                        {"tokens_per_s_per_gpu", m.figures.tokens_per_s_per_rank},
                        {"mfu", m.figures.mfu},
                        {"score_ms", f.score / 1e6},
                        {"numbers", words_of(numbers_of(q.space, f.candidate))}};
  if (!on_cpu(q)) {
    out["device_over_bytes"] = m.device_over(q.ground.machine.kind);
    out["staging_bytes"] = m.fit.staging_bytes;
  }
  if (!m.trains()) out["refusal"] = m.untrained;
  if (answer.unlimited) out["costs"] = m.figures.step_ms / answer.unlimited->measured.figures.step_ms - 1;
  return out;
}

}  // namespace

std::string fit_page(const FitQuestion& q, const tune::Answer& answer,
                     const std::vector<std::string>& advice) {
  const cost::Machine& m = q.ground.machine;
  std::string out = fmt::format("{} on machine '{}' ({}): {}\n", base::counted(q.space.num_ranks, "rank"),
                                m.name, m.description, limits_text(q, answer.plain.measured));
  out += kept_text(q.space);
  out += fmt::format("with nothing chosen the step {}; {:.1f} ms\n", answer.plain.measured.fit.text,
                     answer.plain.measured.figures.step_ms);
  const bool fits = !answer.rows.empty();
  const std::vector<Found>& rows = fits ? answer.rows : answer.nearest;
  if (rows.empty()) {
    out += fmt::format("\n`train` takes none of the choices: {}\n", answer.plain.measured.untrained);
  } else {
    out += fits ? "\n" : "\nnothing fits; nearest to it:\n\n";
    out += table_of(q, answer, rows, fits).text() + "\n";
    const std::vector<std::string> words = words_of(q.space, rows[0].candidate);
    if (words.empty())
      out += "nothing has to be chosen\n";
    else
      out += fits ? "* is\n" : "the first is\n";
    for (const std::string& w : words) out += "- " + w + "\n";
    if (!fits) out += fmt::format("and {}\n", rows[0].measured.fit.text);
  }
  if (answer.unlimited)
    out += fmt::format("costs: against {:.1f} ms, the best if memory had no end ({}, {})\n",
                       answer.unlimited->measured.figures.step_ms,
                       tune::text_of(q.space, answer.unlimited->candidate),
                       size_text(on_cpu(q) ? answer.unlimited->measured.fit.host_bytes
                                           : answer.unlimited->measured.device_bytes));
  out += not_yet_text(q, answer);
  if (!advice.empty()) out += fits ? "worth a thought:\n" : "what would have to give, one of:\n";
  for (const std::string& a : advice) out += "- " + a + "\n";
  out += fmt::format("searched {}, of which {} were planned and simulated\n",
                     base::counted(answer.num_combinations, "combination"), answer.num_measured);
  if (!answer.complete)
    out += fmt::format(
        "stopped at a limit (--trials {}, --time-limit {:g}): the best of what was looked at, and there may "
        "be better\n",
        q.trials, q.time_limit_s);
  return out;
}

nlohmann::json fit_json(const FitQuestion& q, const tune::Answer& answer,
                        const std::vector<std::string>& advice) {
  nlohmann::json out = {{"machine", q.ground.machine.name},
                        {"ranks", q.space.num_ranks},
                        {"host_limit_bytes", answer.plain.measured.fit.host_limit},
                        {"fits", !answer.rows.empty()},
                        {"complete", answer.complete},
                        {"kept", q.space.kept},
                        {"combinations", answer.num_combinations},
                        {"measured", answer.num_measured},
                        {"plain", json_of(q, answer, answer.plain)},
                        {"rows", nlohmann::json::array()},
                        {"nearest", nlohmann::json::array()},
                        {"advice", advice}};
  if (!on_cpu(q)) out["device_limit_bytes"] = answer.plain.measured.fit.device_limit;
  if (answer.unlimited) out["unlimited"] = json_of(q, answer, *answer.unlimited);
  for (const Found& f : answer.rows) out["rows"].push_back(json_of(q, answer, f));
  for (const Found& f : answer.nearest) out["nearest"].push_back(json_of(q, answer, f));
  out["not_yet"] = {{"fits", answer.not_yet.fits && !answer.not_yet.rows.empty()},
                    {"rows", nlohmann::json::array()}};
  for (const Found& f : answer.not_yet.rows) out["not_yet"]["rows"].push_back(json_of(q, answer, f));
  return out;
}

std::string fit_comment(const FitQuestion& q, const Found& found, const std::string& path) {
  std::string out = fmt::format("# Written by `pleat fit` for {} on machine '{}': {}.\n",
                                base::counted(q.space.num_ranks, "rank"), q.ground.machine.name,
                                limits_text(q, found.measured));
  for (const std::string& w : words_of(q.space, found.candidate)) out += "# - " + w + "\n";
  out += fmt::format(
      "# Planned: {}; simulated: {:.1f} ms a step.\n# `pleat plan {} --machine {} --ranks {}` plans it "
      "again.\n\n",
      found.measured.fit.text, found.measured.figures.step_ms, path, q.ground.machine.name,
      q.space.num_ranks);
  return out;
}

}  // namespace pleat::apps
