#include "cost/cost_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/foreign_text.h"
#include "base/posix_vfs.h"
#include "base/replace_file.h"
#include "base/terminal_text.h"

namespace pleat::cost {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kCostFormat = "pleat costs";
constexpr int64_t kCostVersion = 1, kMaxDim = int64_t{1} << 48, kMaxCount = int64_t{1} << 40;
constexpr size_t kMaxEntries = 200'000, kMaxDims = 256, kMaxKindBytes = 2000, kMaxNameBytes = 200;
constexpr double kMaxStepNs = 1e15, kMaxWork = 1e24;  // eleven days; more than any machine computes in them
constexpr double kMaxCrowd = 1e3;

// One object whose keys must all be known and there; every error says where.
class CostFields {
 public:
  CostFields(const json& object, std::string where, std::initializer_list<const char*> keys)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) base::fail("{}: is {}, needs an object", where_, object.type_name());
    for (const char* key : keys)
      if (!object.contains(key)) base::fail("{}: has no \"{}\"", where_, key);
    for (const auto& item : object.items())
      if (std::none_of(keys.begin(), keys.end(), [&](const char* k) { return item.key() == k; }))
        base::fail("{}: \"{}\" is not a known key", where_, shown_text(item.key()));
  }

  const std::string& where() const { return where_; }
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    return integer_of(object_.at(key), key, least, most);
  }
  double number(const char* key, double least, double most) const {
    return number_of(object_.at(key), key, least, most);
  }
  std::string text(const char* key, size_t most) const {
    const json& v = object_.at(key);
    if (!v.is_string() || v.get_ref<const std::string&>().size() > most)
      base::fail("{}: \"{}\" is {}, needs a text of at most {} bytes", where_, key, shown(v), most);
    if (!base::is_plain_line(v.get_ref<const std::string&>()))
      base::fail("{}: \"{}\" is {}, needs one line of printable text", where_, key, shown(v));
    return v.get<std::string>();
  }
  const json& list(const char* key, size_t most) const {
    const json& v = object_.at(key);
    if (!v.is_array()) base::fail("{}: \"{}\" is {}, needs a list", where_, key, shown(v));
    if (v.size() > most) base::fail("{}: \"{}\" holds {}, at most {} are read", where_, key, v.size(), most);
    return v;
  }
  std::vector<int64_t> integers(const char* key, size_t count, int64_t least, int64_t most) const {
    std::vector<int64_t> out;
    for (const json& v : list(key, count)) out.push_back(integer_of(v, key, least, most));
    return out;
  }
  std::vector<double> numbers(const char* key, size_t count, double least, double most) const {
    std::vector<double> out;
    for (const json& v : list(key, count)) out.push_back(number_of(v, key, least, most));
    return out;
  }

 private:
  int64_t integer_of(const json& v, const char* key, int64_t least, int64_t most) const {
    const bool fits = !v.is_number_unsigned() || v.get<uint64_t>() <= uint64_t{INT64_MAX};
    if (!v.is_number_integer() || !fits || v.get<int64_t>() < least || v.get<int64_t>() > most)
      base::fail("{}: \"{}\" is {}, needs an integer of {} to {}", where_, key, shown(v), least, most);
    return v.get<int64_t>();
  }
  double number_of(const json& v, const char* key, double least, double most) const {
    const double number = v.is_number() ? v.get<double>() : 0;
    if (!v.is_number() || !std::isfinite(number) || number < least || number > most)
      base::fail("{}: \"{}\" is {}, needs a number of {} to {}", where_, key, shown(v), least, most);
    return number;
  }
  static std::string shown_text(const std::string& s) { return base::terminal_text(s.substr(0, 60)); }
  static std::string shown(const json& v) {
    return shown_text(v.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  const json& object_;
  std::string where_;
};

std::string dumped(const ordered_json& j) {
  return j.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

CostMachine machine_from(const json& object, const std::string& where) {
  const CostFields f(object, where + ": machine", {"name", "kind", "cores", "threads", "gpu"});
  CostMachine m;
  m.name = f.text("name", kMaxNameBytes);
  m.kind = f.text("kind", kMaxNameBytes);
  if (m.kind != "cpu" && m.kind != "cuda")
    base::fail("{}: \"kind\" is \"{}\", needs cpu or cuda", f.where(),
               base::terminal_text(m.kind.substr(0, 60)));
  m.cores = f.integer("cores", 1, 1 << 20);
  m.threads = f.integer("threads", 1, 1 << 20);
  m.gpu = f.text("gpu", kMaxNameBytes);
  if ((m.kind == "cuda") == m.gpu.empty())
    base::fail("{}: \"gpu\" is \"{}\" and \"kind\" is {}: needs the GPU's name with cuda, none with cpu",
               f.where(), base::terminal_text(m.gpu), m.kind);
  return m;
}

CostEntry entry_from(const json& object, std::string where) {
  const CostFields f(object, std::move(where),
                     {"kind", "dims", "flops", "bytes", "launches", "ns", "low_ns", "high_ns", "seen"});
  CostEntry e;
  e.key.kind = f.text("kind", kMaxKindBytes);
  e.key.dims = f.integers("dims", kMaxDims, 0, kMaxDim);
  e.work = {f.number("flops", 0, kMaxWork), f.number("bytes", 0, kMaxWork),
            static_cast<int>(f.integer("launches", 0, 1 << 30))};
  e.ns = f.number("ns", 1, kMaxStageNs);
  e.low_ns = f.number("low_ns", 0, e.ns);
  e.high_ns = f.number("high_ns", e.ns, kMaxStageNs);
  e.seen = f.integer("seen", 1, kMaxCount);
  return e;
}

auto link_key(const LinkTime& l) { return std::tie(l.operation, l.ranks, l.bytes); }
auto step_key(const StepTime& s) { return std::tie(s.config, s.ranks, s.pipeline_rank); }

double distance(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d =
        std::log(double(std::max<int64_t>(a[i], 1))) - std::log(double(std::max<int64_t>(b[i], 1)));
    sum += d * d;
  }
  return std::sqrt(sum);
}

}  // namespace

std::string describe(const CostMachine& m) {
  return fmt::format("{} '{}'{}, {} core{}, {} thread{} of a rank", m.kind, m.name,
                     m.gpu.empty() ? "" : fmt::format(" with '{}'", m.gpu), m.cores, m.cores == 1 ? "" : "s",
                     m.threads, m.threads == 1 ? "" : "s");
}

std::string to_json(const CostFile& file) {
  const CostMachine& m = file.machine;
  std::string out = fmt::format(
      "{{\"format\": \"{}\", \"version\": {},\n \"machine\": {},\n \"config\": {},\n \"crowd\": {},\n",
      kCostFormat, kCostVersion,
      dumped(
          {{"name", m.name}, {"kind", m.kind}, {"cores", m.cores}, {"threads", m.threads}, {"gpu", m.gpu}}),
      dumped(file.config), dumped(file.crowd));
  // A line per element: files are compared and read by people too.
  const auto lines = [&out](const char* name, const auto& list, auto&& object, const char* end) {
    out += fmt::format(" \"{}\": [", name);
    const char* between = "\n  ";
    for (const auto& element : list) {
      out += between + dumped(object(element));
      between = ",\n  ";
    }
    out += end;
  };
  lines(
      "steps", file.steps,
      [](const StepTime& s) {
        return ordered_json{{"config", s.config},
                            {"ranks", s.ranks},
                            {"pipeline_rank", s.pipeline_rank},
                            {"ns", s.ns},
                            {"stages_ns", s.stages_ns}};
      },
      "],\n");
  lines(
      "links", file.links,
      [](const LinkTime& l) {
        return ordered_json{{"operation", l.operation}, {"ranks", l.ranks}, {"bytes", l.bytes}, {"ns", l.ns}};
      },
      "],\n");
  lines(
      "entries", file.entries,
      [](const CostEntry& e) {
        return ordered_json{{"kind", e.key.kind},    {"dims", e.key.dims},          {"flops", e.work.flops},
                            {"bytes", e.work.bytes}, {"launches", e.work.launches}, {"ns", e.ns},
                            {"low_ns", e.low_ns},    {"high_ns", e.high_ns},        {"seen", e.seen}};
      },
      "]}\n");
  return out;
}

CostFile costs_from_json(std::string_view text, std::string_view where) {
  const std::string place(where);
  if (static_cast<int64_t>(text.size()) > kMaxCostFileBytes)
    base::fail("{}: has {} bytes, at most {} are read", place, text.size(), kMaxCostFileBytes);
  base::refuse_deep_json(text, 8, place);
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) base::fail("{}: not valid JSON ({} bytes)", place, text.size());
  const CostFields root(object, place,
                        {"format", "version", "machine", "config", "crowd", "steps", "links", "entries"});
  if (const std::string format = root.text("format", kMaxNameBytes); format != kCostFormat)
    base::fail("{}: \"format\" is \"{}\", needs \"{}\"", place, base::terminal_text(format), kCostFormat);
  root.integer("version", kCostVersion, kCostVersion);
  CostFile out;
  out.machine = machine_from(object.at("machine"), place);
  out.config = root.text("config", kMaxKindBytes);
  out.crowd = root.numbers("crowd", 1 << 16, 1e-3, kMaxCrowd);
  if (!out.crowd.empty() && out.crowd[0] != 1)
    base::fail("{}: \"crowd\" begins with {}, needs 1: one core at work is what the others are compared with",
               place, out.crowd[0]);
  std::set<std::tuple<std::string, int64_t, int64_t>> links, steps;
  for (const json& element : root.list("steps", kMaxEntries)) {
    const CostFields f(element, fmt::format("{}: step {}", place, out.steps.size()),
                       {"config", "ranks", "pipeline_rank", "ns", "stages_ns"});
    const StepTime s{f.text("config", kMaxNameBytes), f.integer("ranks", 1, 1 << 30),
                     f.integer("pipeline_rank", 0, 1 << 30), f.number("ns", 0, kMaxStepNs),
                     f.number("stages_ns", 0, kMaxStepNs)};
    if (!steps.insert(step_key(s)).second) base::fail("{}: is there twice", f.where());
    out.steps.push_back(s);
  }
  for (const json& element : root.list("links", kMaxEntries)) {
    const CostFields f(element, fmt::format("{}: link {}", place, out.links.size()),
                       {"operation", "ranks", "bytes", "ns"});
    const LinkTime l{f.text("operation", kMaxNameBytes), f.integer("ranks", 2, 1 << 30),
                     f.integer("bytes", 0, kMaxDim), f.number("ns", 0, kMaxStageNs)};
    if (!links.insert(link_key(l)).second) base::fail("{}: is there twice", f.where());
    out.links.push_back(l);
  }
  for (const json& element : root.list("entries", kMaxEntries))
    out.entries.push_back(entry_from(element, fmt::format("{}: entry {}", place, out.entries.size())));
  for (size_t i = 1; i < out.entries.size(); ++i)
    if (!(out.entries[i - 1].key < out.entries[i].key))
      base::fail("{}: entry {}: \"kind\" and \"dims\" must come after those of the one before", place, i);
  return out;
}

void write_costs(const std::string& path, const CostFile& file) { base::replace_file(path, to_json(file)); }

CostFile read_costs(const std::string& path) {
  base::PosixVfs disk;
  return costs_from_json(base::read_file(disk, path, kMaxCostFileBytes), path);
}

CostFile join(std::span<const CostFile> files) {
  PLEAT_CHECK(!files.empty(), "no costs to join");
  CostFile out;
  out.machine = files[0].machine;
  std::map<StageKey, CostEntry> entries;
  std::set<std::string> names;
  std::set<std::tuple<std::string, int64_t, int64_t>> links, steps;
  for (const CostFile& file : files) {
    if (file.machine != out.machine)
      base::fail("costs of '{}' were measured on {}, those of '{}' on {}: needed one machine",
                 files[0].config, describe(out.machine), file.config, describe(file.machine));
    if (names.insert(file.config).second) out.config += (out.config.empty() ? "" : ", ") + file.config;
    for (const CostEntry& e : file.entries) {
      const auto [at, is_new] = entries.emplace(e.key, e);
      if (!is_new && e.seen > at->second.seen) at->second = e;
    }
    for (const LinkTime& l : file.links)
      if (links.insert(link_key(l)).second) out.links.push_back(l);
    for (const StepTime& s : file.steps)
      if (steps.insert(step_key(s)).second) out.steps.push_back(s);
    if (file.crowd.size() > out.crowd.size()) out.crowd = file.crowd;
  }
  for (auto& [key, e] : entries) out.entries.push_back(std::move(e));
  return out;
}

CostTable::CostTable(const std::vector<CostEntry>& entries) : size_(entries.size()) {
  for (const CostEntry& e : entries) by_kind_[e.key.kind].push_back(e);
  for (auto& [kind, list] : by_kind_)
    std::sort(list.begin(), list.end(),
              [](const CostEntry& a, const CostEntry& b) { return a.key.dims < b.key.dims; });
}

const CostEntry* CostTable::find(const StageKey& key) const {
  const auto kind = by_kind_.find(key.kind);
  if (kind == by_kind_.end()) return nullptr;
  const auto at = std::lower_bound(
      kind->second.begin(), kind->second.end(), key.dims,
      [](const CostEntry& e, const std::vector<int64_t>& dims) { return e.key.dims < dims; });
  return at != kind->second.end() && at->key.dims == key.dims ? &*at : nullptr;
}

std::optional<double> CostTable::ns(const StageKey& key, const kernels::Work& work,
                                    const Formula& formula) const {
  if (const CostEntry* exact = find(key)) return exact->ns;
  const auto kind = by_kind_.find(key.kind);
  if (kind == by_kind_.end()) return std::nullopt;
  std::vector<std::pair<double, const CostEntry*>> near;
  for (const CostEntry& e : kind->second)
    if (e.key.dims.size() == key.dims.size()) near.emplace_back(distance(e.key.dims, key.dims), &e);
  if (near.empty()) return std::nullopt;
  const size_t n = std::min<size_t>(near.size(), 4);
  // Of equally near ones the first by dims: no chance in it.
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto by_formula = [&](const kernels::Work& w) { return std::max(formula(w, key.kind), 1.0); };
  double sum = 0, weights = 0;
  for (size_t i = 0; i < n; ++i) {
    const double d = std::max(near[i].first, 1e-6);  // 0 and 1 are equally small
    sum += std::log(near[i].second->ns / by_formula(near[i].second->work)) / (d * d);
    weights += 1 / (d * d);
  }
  return by_formula(work) * std::exp(sum / weights);
}

}  // namespace pleat::cost
