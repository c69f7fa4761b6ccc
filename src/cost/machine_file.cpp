#include "cost/machine_file.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/terminal_text.h"
#include "config/flat_toml.h"
#include "config/nearest.h"
#include "config/quote.h"

namespace pleat::cost {
namespace {

// A key with the field it fills.
struct Row {
  MachineKey key;
  std::function<void(Machine&, double)> set;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> out;
    const auto add = [&](std::string path, double low, double high, auto field, std::string meaning,
                         bool needed = true) {
      Machine probe;
      using Field = std::remove_reference_t<decltype(field(probe))>;
      out.push_back({{std::move(path), std::move(meaning), low, high, needed, !std::is_same_v<Field, double>},
                     [field](Machine& m, double v) { field(m) = static_cast<Field>(v); }});
    };
#define PLEAT_FIELD(f) \
  [](Machine & m) -> auto& { return m.f; }
    const std::string peak = "TFLOP/s of dense products of ";
    add("processor.bf16_tflops", 0, 1e6, PLEAT_FIELD(processor.bf16_tflops), peak + "bf16; 0: it has none");
    add("processor.fp8_tflops", 0, 1e6, PLEAT_FIELD(processor.fp8_tflops), peak + "FP8; 0: it has none");
    add("processor.fp4_tflops", 0, 1e6, PLEAT_FIELD(processor.fp4_tflops), peak + "FP4; 0: it has none");
    add("processor.f32_tflops", 0, 1e6, PLEAT_FIELD(processor.f32_tflops), peak + "float32");
    add("processor.f64_tflops", 0, 1e6, PLEAT_FIELD(processor.f64_tflops), peak + "float64");
    add("processor.memory_gib", 0, 1e6, PLEAT_FIELD(processor.memory_gib),
        "Memory of a GPU, GiB that a process can have; 0 for a CPU, whose ranks share node.host_memory_gib");
    add("processor.memory_gb_s", 1e-3, 1e6, PLEAT_FIELD(processor.memory_gb_s),
        "Memory, GB/s read and written together; of a CPU what one core reaches");
    add("processor.units", 1, 1e5, PLEAT_FIELD(processor.units),
        "Multiprocessors of a GPU; cores of a CPU's node");
    add("processor.launch_us", 0, 1e4, PLEAT_FIELD(processor.launch_us),
        "What every kernel, copy and fill takes beside its work, microseconds");
    add("processor.host_launch_us", 0, 1e4, PLEAT_FIELD(processor.host_launch_us),
        "What the host needs to issue one operation where the step is no graph; 0 for a CPU");
    add("processor.graph_launch_us", 0, 1e6, PLEAT_FIELD(processor.graph_launch_us),
        "What the host needs to launch a step that is one graph; 0 for a CPU");
    add("node.ranks", 1, 1e5, PLEAT_FIELD(node.ranks), "GPUs of a node; ranks of a CPU's node");
    add("node.link_gb_s", 1e-3, 1e6, PLEAT_FIELD(node.link.gb_s),
        "Between two ranks of a node, GB/s each way");
    add("node.link_latency_us", 0, 1e6, PLEAT_FIELD(node.link.latency_us), "Its latency, microseconds");
    add("node.link_half_kib", 0, 1e6, PLEAT_FIELD(node.link.half_kib),
        "The message that reaches half of its rate, KiB");
    add("node.host_link_gb_s", 0, 1e6, PLEAT_FIELD(node.host_link_gb_s),
        "Copies between a GPU and its host, one way, GB/s; 0 for a CPU");
    add("node.host_link_both_gb_s", 0, 1e6, PLEAT_FIELD(node.host_link_both_gb_s),
        "Each way with both at once, GB/s; 0 for a CPU");
    add("node.host_memory_gib", 1e-3, 1e7, PLEAT_FIELD(node.host_memory_gib), "Memory of the host, GiB");
    add("network.nics", 1, 1e5, PLEAT_FIELD(network.nics), "Network adapters of a node");
    add("network.nic_gb_s", 1e-3, 1e6, PLEAT_FIELD(network.nic.gb_s), "One of them, GB/s each way");
    add("network.latency_us", 0, 1e6, PLEAT_FIELD(network.nic.latency_us), "Between nodes, microseconds");
    add("network.half_kib", 0, 1e6, PLEAT_FIELD(network.nic.half_kib),
        "The message that reaches half of an adapter's rate, KiB");
    add("sharing.exchange", 0, 1, PLEAT_FIELD(sharing.exchange),
        "Of the processor, what an exchange between ranks takes while it runs", false);
    add("sharing.host_copy", 0, 1, PLEAT_FIELD(sharing.host_copy),
        "Of the processor, what a copy to or from the host takes while it runs", false);
#undef PLEAT_FIELD
    return out;
  }();
  return all;
}

constexpr const char* kName = "machine.name";
constexpr const char* kDescription = "machine.description";
constexpr const char* kKind = "machine.kind";
constexpr const char* kGpu = "processor.gpu";
constexpr const char* kRails = "network.rails";

[[noreturn]] void unknown(const config::FlatEntry& entry) {
  std::vector<std::string> names = {kName, kDescription, kKind, kGpu, kRails};
  for (const Row& row : rows()) names.push_back(row.key.path);
  base::fail("{}: unknown key {}; the nearest is \"{}\"", entry.where, config::quote(entry.path),
             config::nearest_word(entry.path, names));
}

double number_of(const config::FlatEntry& entry, const MachineKey& key) {
  double v = 0;
  if (const auto* whole = std::get_if<int64_t>(&entry.value))
    v = static_cast<double>(*whole);
  else if (const auto* number = std::get_if<double>(&entry.value))
    v = *number;
  else
    base::fail("{}: {} is no number; needed is one from {:g} to {:g}", entry.where, entry.path, key.low,
               key.high);
  if (!(v >= key.low && v <= key.high))
    base::fail("{}: {} = {:g}; needed is {:g} to {:g}", entry.where, entry.path, v, key.low, key.high);
  if (key.whole && v != std::floor(v))
    base::fail("{}: {} = {:g}; needed is a whole number", entry.where, entry.path, v);
  return v;
}

std::string text_of(const config::FlatEntry& entry) {
  const auto* text = std::get_if<std::string>(&entry.value);
  if (!text) base::fail("{}: {} is no text", entry.where, entry.path);
  if (!base::is_plain_line(*text))
    base::fail("{}: {} = {}; needed is one line of printable text", entry.where, entry.path,
               config::quote(base::terminal_text(*text)));
  return *text;
}

// What no single range says.
void require_whole_machine(const Machine& m, std::string_view source) {
  const auto need = [&](bool holds, const char* what) {
    if (!holds) base::fail("{}: {}", source, what);
  };
  // Below that, times no longer fit into their numbers.
  constexpr double kLeast = 1e-3;
  const Processor& p = m.processor;
  for (const double rate : {p.bf16_tflops, p.fp8_tflops, p.fp4_tflops, p.f32_tflops, p.f64_tflops,
                            p.memory_gib, m.node.host_link_gb_s, m.node.host_link_both_gb_s})
    need(rate == 0 || rate >= kLeast,
         "processor.*_tflops, processor.memory_gib and node.host_link* must be 0 or at least 0.001");
  if (m.kind == MachineKind::Gpu) {
    need(!m.processor.gpu.empty(),
         "processor.gpu is missing: the word of its driver's name for this GPU, as \"H200\"");
    need(m.processor.memory_gib > 0, "processor.memory_gib of a GPU must be above 0");
    need(m.processor.bf16_tflops > 0, "processor.bf16_tflops of a GPU must be above 0");
    need(m.node.host_link_gb_s > 0 && m.node.host_link_both_gb_s > 0,
         "node.host_link_gb_s and node.host_link_both_gb_s of a GPU must be above 0");
    need(m.node.host_link_both_gb_s <= m.node.host_link_gb_s,
         "node.host_link_both_gb_s is each way with both at once: at most node.host_link_gb_s");
  } else {
    need(m.processor.gpu.empty(), "processor.gpu of a CPU must not be there");
    need(m.processor.f32_tflops > 0 && m.processor.f64_tflops > 0,
         "processor.f32_tflops and processor.f64_tflops of a CPU must be above 0");
    need(m.processor.memory_gib == 0, "processor.memory_gib of a CPU must be 0: ranks share the node's");
    need(m.processor.host_launch_us == 0 && m.processor.graph_launch_us == 0,
         "processor.host_launch_us and graph_launch_us of a CPU must be 0: no other host issues its work");
  }
}

}  // namespace

const std::vector<MachineKey>& machine_keys() {
  static const std::vector<MachineKey> keys = [] {
    std::vector<MachineKey> out;
    for (const Row& row : rows()) out.push_back(row.key);
    return out;
  }();
  return keys;
}

Machine machine_from_toml(std::string_view text, std::string_view source) {
  Machine m;
  std::map<std::string, bool> seen;
  for (const config::FlatEntry& entry : config::flat_toml(text, source)) {
    seen[entry.path] = true;
    if (entry.path == kName) {
      m.name = text_of(entry);
    } else if (entry.path == kDescription) {
      m.description = text_of(entry);
    } else if (entry.path == kKind) {
      const std::string kind = text_of(entry);
      if (kind != "gpu" && kind != "cpu")
        base::fail("{}: machine.kind = {}; needed is \"gpu\" or \"cpu\"", entry.where, config::quote(kind));
      m.kind = kind == "gpu" ? MachineKind::Gpu : MachineKind::Cpu;
    } else if (entry.path == kGpu) {
      m.processor.gpu = text_of(entry);
    } else if (entry.path == kRails) {
      const bool* rails = std::get_if<bool>(&entry.value);
      if (!rails) base::fail("{}: network.rails must be true or false", entry.where);
      m.network.rails = *rails;
    } else {
      const auto row =
          std::find_if(rows().begin(), rows().end(), [&](const Row& r) { return r.key.path == entry.path; });
      if (row == rows().end()) unknown(entry);
      row->set(m, number_of(entry, row->key));
    }
  }
  for (const char* path : {kName, kDescription, kKind, kRails})
    if (!seen[path]) base::fail("{}: {} is missing", source, path);
  for (const Row& row : rows())
    if (row.key.needed && !seen[row.key.path])
      base::fail("{}: {} is missing: {}", source, row.key.path, row.key.meaning);
  if (m.name.empty()) base::fail("{}: machine.name is empty", source);
  require_whole_machine(m, source);
  return m;
}

std::optional<Machine> machine_of_gpu(std::string_view driver_name) {
  for (const ShippedMachine& shipped : shipped_machines()) {
    Machine m = find_machine(std::string(shipped.name));
    if (has_gpu(m, driver_name)) return m;
  }
  return std::nullopt;
}

Machine find_machine(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".toml"))
    return machine_from_toml(config::toml_file_text(name), name);
  std::vector<std::string> names;
  for (const ShippedMachine& m : shipped_machines()) {
    if (m.name == name) return machine_from_toml(m.text, "machines/" + name + ".toml");
    names.emplace_back(m.name);
  }
  base::fail("there is no machine {}; there are {}; a file of your own ends in .toml", config::quote(name),
             fmt::join(names, ", "));
}

}  // namespace pleat::cost
