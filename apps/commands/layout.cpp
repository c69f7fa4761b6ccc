#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "command.h"
#include "layout/from_config.h"
#include "layout/nodes.h"
#include "layout/picture.h"
#include "report/table.h"
#include "schedule/ranks.h"

namespace pleat::apps {
namespace {

using layout::GroupKind;

// Runs of neighbours as 0-7.
std::string ranks_text(const std::vector<int>& ranks) {
  std::string out = "{";
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    out += fmt::format("{}{}", i > 0 ? "," : "", ranks[i]);
    if (end - i > 1) out += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return out + "}";
}

std::string items_text(const layout::Chunk& chunk) {
  std::string out;
  for (size_t i = 0; i < chunk.size();) {
    size_t end = i;
    while (end < chunk.size() && chunk[end].part == chunk[i].part) ++end;
    static constexpr const char* kNames[] = {"embedding", "layer", "prediction layer", "loss"};
    out += fmt::format("{}{}", out.empty() ? "" : ", ", kNames[static_cast<size_t>(chunk[i].part)]);
    const bool counted = chunk[i].part == layout::Part::Layer || chunk[i].part == layout::Part::Prediction;
    if (counted && end - i == 1) out += fmt::format(" {}", chunk[i].index);
    if (counted && end - i > 1) out += fmt::format("s {}-{}", chunk[i].index, chunk[end - 1].index);
    i = end;
  }
  return out.empty() ? "nothing" : out;
}

// Behind the size of groups, where it is declared how many ranks share a machine.
std::string nodes_text(const layout::Layout& l, GroupKind kind, int64_t per_node) {
  if (per_node == 0) return "";
  const int64_t crossing = layout::num_crossing(l, kind, per_node),
                all = static_cast<int64_t>(l.groups(kind).size());
  if (crossing == 0) return ", inside machines";
  return crossing == all ? ", across machines" : fmt::format(", {} of them across machines", crossing);
}

void print_groups(const layout::Layout& l, int64_t per_node) {
  constexpr size_t kWidth = 110, kIndent = 4;
  for (int k = 0; k < layout::kNumGroupKinds; ++k) {
    const GroupKind kind = static_cast<GroupKind>(k);
    const auto groups = l.groups(kind);
    if (l.group_size(kind) == 1) {
      fmt::print("{}: every rank alone\n", name_of(kind));
      continue;
    }
    fmt::print("{}: {} group{} of {}{}\n", name_of(kind), groups.size(), groups.size() == 1 ? "" : "s",
               l.group_size(kind), nodes_text(l, kind, per_node));
    std::string line(kIndent, ' ');
    for (const auto& group : groups) {
      const std::string text = ranks_text(group);
      if (line.size() > kIndent && line.size() + 1 + text.size() > kWidth) {
        fmt::print("{}\n", line);
        line.assign(kIndent, ' ');
      }
      line += (line.size() > kIndent ? " " : "") + text;
    }
    fmt::print("{}\n", line);
  }
}

void print_nodes(const layout::Layout& l, int64_t per_node) {
  if (per_node == 0) return;
  fmt::print("machines   {}, up to {} on each", layout::num_nodes(l.world(), per_node),
             base::counted(per_node, "rank"));
  std::string cuts;
  for (int64_t stage = 0; stage < l.sizes().pp && l.sizes().pp > 1; ++stage)
    if (const int64_t next = (stage + 1) % l.sizes().pp;
        (next > 0 || l.sizes().vpp > 1) && layout::cut_crosses_nodes(l, stage, per_node))
      cuts += fmt::format("{}{} to {}", cuts.empty() ? "" : ", ", stage, next);
  fmt::print("{}\n", cuts.empty() ? "" : "; pipeline messages across machines: stage " + cuts);
}

void print_layout(const layout::Layout& l, const layout::PipelineLayout& pipeline, int64_t per_node) {
  const layout::Sizes& s = l.sizes();
  const std::string world = base::counted(s.world, "rank");
  fmt::print("attention  {} = tp {} x cp {} x dp {} x pp {}\n", world, s.tp, s.cp, l.dp(), s.pp);
  fmt::print("experts    {} = etp {} x ep {} x edp {} x pp {}\n", world, s.etp, s.ep, l.edp(), s.pp);
  fmt::print("order      {}\n", s.order);
  print_nodes(l, per_node);
  fmt::print("\n");
  constexpr auto kRight = report::Align::Right;
  report::Table ranks({{"rank", kRight},
                       {"tp", kRight},
                       {"cp", kRight},
                       {"dp", kRight},
                       {"pp", kRight},
                       {"etp", kRight},
                       {"ep", kRight},
                       {"edp", kRight}});
  for (int64_t r = 0; r < s.world; ++r) {
    const layout::AttentionPlace a = l.attention(r);
    const layout::ExpertPlace e = l.expert(r);
    std::vector<std::string> cells;
    for (const int64_t n : {r, a.tp, a.cp, a.dp, a.pp, e.etp, e.ep, e.edp})
      cells.push_back(std::to_string(n));
    ranks.add_row(cells);
  }
  fmt::print("{}\n", ranks.text());
  print_groups(l, per_node);
  report::Table chunks({{"chunk", kRight}, {"pp", kRight}, {"vpp", kRight}, {"holds"}});
  for (int64_t i = 0; i < pipeline.num_chunks(); ++i)
    chunks.add_row({std::to_string(i), std::to_string(i % s.pp), std::to_string(i / s.pp),
                    items_text(pipeline.chunk(i))});
  fmt::print("\npipeline {}\n{}", pipeline.text(), chunks.text());
}

nlohmann::ordered_json to_json(const layout::Layout& l, const layout::PipelineLayout& pipeline,
                               int64_t per_node) {
  const layout::Sizes& s = l.sizes();
  nlohmann::ordered_json out;
  out["sizes"] = {{"ranks", s.world}, {"tp", s.tp}, {"cp", s.cp},   {"dp", l.dp()},   {"pp", s.pp},
                  {"vpp", s.vpp},     {"ep", s.ep}, {"etp", s.etp}, {"edp", l.edp()}, {"order", s.order}};
  if (per_node > 0)
    out["nodes"] = {{"ranks_per_node", per_node}, {"nodes", layout::num_nodes(s.world, per_node)}};
  for (int64_t r = 0; r < s.world; ++r) {
    const layout::AttentionPlace a = l.attention(r);
    const layout::ExpertPlace e = l.expert(r);
    out["ranks"].push_back({{"rank", r},
                            {"attention", {{"tp", a.tp}, {"cp", a.cp}, {"dp", a.dp}, {"pp", a.pp}}},
                            {"expert", {{"etp", e.etp}, {"ep", e.ep}, {"edp", e.edp}, {"pp", e.pp}}},
                            {"next_stage", l.next_stage(r)},
                            {"previous_stage", l.previous_stage(r)}});
  }
  for (int k = 0; k < layout::kNumGroupKinds; ++k) {
    const GroupKind kind = static_cast<GroupKind>(k);
    out["groups"][std::string(name_of(kind))] = l.groups(kind);
    if (per_node > 0)
      out["groups_across_nodes"][std::string(name_of(kind))] = layout::num_crossing(l, kind, per_node);
  }
  out["pipeline"]["text"] = pipeline.text();
  static constexpr const char* kNames[] = {"embedding", "layer", "prediction", "loss"};
  for (int64_t i = 0; i < pipeline.num_chunks(); ++i) {
    nlohmann::ordered_json items = nlohmann::ordered_json::array();
    for (const layout::PipelineItem& item : pipeline.chunk(i))
      items.push_back({{"part", kNames[static_cast<size_t>(item.part)]}, {"index", item.index}});
    out["pipeline"]["chunks"].push_back({{"pp", i % s.pp}, {"vpp", i / s.pp}, {"items", items}});
  }
  return out;
}

}  // namespace

void add_layout(CLI::App& command, Action& chosen) {
  struct Options {
    ConfigArgument config;
    int64_t num_ranks = 1;
    bool json = false;
    std::string svg;
  };
  auto o = std::make_shared<Options>();
  CLI::App* c = &command;
  add_config_argument(*c, o->config);
  c->add_option("--ranks", o->num_ranks, "Ranks to divide")->required()->check(CLI::PositiveNumber);
  c->add_flag("--json", o->json, "Print JSON instead of tables");
  c->add_option("--svg", o->svg, "Write a picture of both meshes to this file instead");
  add_example(
      *c,
      "pleat layout configs/demo.toml --ranks 16 --set parallel.tp=2 --set parallel.pp=2 --set "
      "parallel.ep=4\n"
      "  pleat layout configs/demo.toml --ranks 8 --set parallel.tp=2 --set parallel.ep=8 --svg layout.svg");
  c->callback([o, &chosen] {
    chosen = [o] {
      const config::Config config = o->config.resolved();
      const layout::Layout layout = schedule::layout_of(config, o->num_ranks);
      const layout::PipelineLayout pipeline = layout::pipeline_of(config);
      note_refusal(config, layout);
      if (!o->svg.empty())
        write_text(o->svg, layout::picture(layout));
      else if (o->json)
        fmt::print("{}\n", to_json(layout, pipeline, config.parallel.ranks_per_node).dump());
      else
        print_layout(layout, pipeline, config.parallel.ranks_per_node);
      return 0;
    };
  });
}

}  // namespace pleat::apps
