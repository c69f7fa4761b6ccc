#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "command.h"
#include "cost/machine_file.h"
#include "report/table.h"

namespace pleat::apps {
namespace {

int list_machines(bool as_json) {
  constexpr auto kRight = report::Align::Right;
  report::Table table({{"machine"},
                       {"what it is"},
                       {"bf16 TFLOP/s", kRight},
                       {"memory", kRight},
                       {"GB/s", kRight},
                       {"in a node", kRight},
                       {"link GB/s", kRight},
                       {"network GB/s a rank", kRight}});
  nlohmann::json out = nlohmann::json::array();
  for (const cost::ShippedMachine& shipped : cost::shipped_machines()) {
    const cost::Machine m = cost::find_machine(std::string(shipped.name));
    const auto number = [](double v) { return v > 0 ? fmt::format("{:g}", v) : std::string("-"); };
    const bool cpu = m.kind == cost::MachineKind::Cpu;
    table.add_row({m.name, m.description, number(m.processor.bf16_tflops),
                   fmt::format("{:g} GiB", cpu ? m.node.host_memory_gib : m.processor.memory_gib),
                   number(m.processor.memory_gb_s), cpu ? "any" : fmt::format("{}", m.node.ranks),
                   number(m.node.link.gb_s), number(cpu ? 0 : m.network_gb_s())});
    out.push_back({{"name", m.name},
                   {"description", m.description},
                   {"kind", cpu ? "cpu" : "gpu"},
                   {"bf16_tflops", m.processor.bf16_tflops},
                   {"memory_gib", cpu ? m.node.host_memory_gib : m.processor.memory_gib},
                   {"memory_gb_s", m.processor.memory_gb_s},
                   {"ranks_per_node", m.node.ranks},
                   {"link_gb_s", m.node.link.gb_s},
                   {"network_gb_s_per_rank", m.network_gb_s()}});
  }
  if (as_json)
    fmt::print("{}\n", out.dump(1));
  else
    fmt::print("{}\n`pleat machines NAME` prints the file: change a copy, and give it to --machine\n",
               table.text());
  return 0;
}

int print_keys() {
  report::Table table({{"key"}, {"from"}, {"to"}, {"meaning"}});
  table.add_row({"machine.name", "", "", "The name it is called by in what is printed"});
  table.add_row({"machine.description", "", "", "A few words for people"});
  table.add_row({"machine.kind", "", "", "\"gpu\", or \"cpu\": ranks are threads that share its cores"});
  table.add_row(
      {"processor.gpu", "", "",
       "Of a GPU: a word of the name its driver gives it, by which costs measured on one are known; of a "
       "CPU not there"});
  table.add_row(
      {"network.rails", "", "",
       "true: an adapter reaches only its like on other nodes; what is for another goes over the node's "
       "links first"});
  for (const cost::MachineKey& key : cost::machine_keys())
    table.add_row({key.path, fmt::format("{:g}", key.low), fmt::format("{:g}", key.high), key.meaning});
  fmt::print("{}", table.text());
  return 0;
}

int print_machine(const std::string& name) {
  for (const cost::ShippedMachine& shipped : cost::shipped_machines())
    if (shipped.name == name) {
      fmt::print("{}", shipped.text);
      return 0;
    }
  cost::find_machine(name);  // a file is checked; a name that is none is refused with those there are
  fmt::print("{}: a machine as it should be\n", name);
  return 0;
}

}  // namespace

void add_machines(CLI::App& command, Action& chosen) {
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false), keys = std::make_shared<bool>(false);
  command.add_option("name", *name, "Print the file of this machine; a .toml file of your own is checked");
  command.add_flag("--keys", *keys, "What each key of such a file means");
  command.add_flag("--json", *json, "The list, machine-readable");
  add_example(command, "pleat machines h100 > mine.toml");
  command.callback([=, &chosen] {
    chosen = [=] {
      return *keys ? print_keys() : name->empty() ? list_machines(*json) : print_machine(*name);
    };
  });
}

}  // namespace pleat::apps
