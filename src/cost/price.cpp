#include "cost/price.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "cost/stage_work.h"

namespace pleat::cost {

using namespace program;

namespace {

// Over whole numbers, each mixed first.
struct Hash {
  uint64_t h = 14695981039346656037ull;
  void add(uint64_t v) {
    v *= 0x9e3779b97f4a7c15ull;
    h = (h ^ v ^ (v >> 32)) * 1099511628211ull;
  }
};

// Equal for stages that take the same: operation, phase, attributes, and of every argument type, shape, place and access.
uint64_t alike(const Program& program, const Stage& stage, double rows, uint64_t attrs) {
  Hash hash;
  hash.add(static_cast<uint64_t>(kernel_of(stage.op)) << 8 | static_cast<uint64_t>(stage.phase));
  hash.add(attrs);
  hash.add(std::hash<double>{}(rows));
  for (const Use& use : stage.uses) {
    if (use.value == kNoValue) {
      hash.add(~0ull);
      continue;
    }
    const Value& v = program.values[static_cast<size_t>(use.value)];
    hash.add(static_cast<uint64_t>(v.dtype) << 16 | static_cast<uint64_t>(use.access) << 8 |
             static_cast<uint64_t>(v.space));
    for (const int64_t d : v.shape) hash.add(static_cast<uint64_t>(d));
    hash.add(static_cast<uint64_t>(v.expected_rows));
  }
  return hash.h;
}

uint64_t hash_of(const AttrSet& set) {
  Hash hash;
  for (const Attr& attr : set) {
    hash.add(std::hash<std::string>{}(attr.key));
    hash.add(std::hash<double>{}(attr.number));
  }
  return hash.h;
}

bool has_rate(tensor::Dtype d) {
  return tensor::is_float(d) || d == tensor::Dtype::E4M3 || d == tensor::Dtype::E2M1;
}

int64_t whole(double ns) { return static_cast<int64_t>(std::ceil(std::clamp(ns, 0.0, kMaxStageNs) - 1e-9)); }

float part(double of, double all) { return all > 0 ? static_cast<float>(std::min(1.0, of / all)) : 0.0F; }

double largest_bytes(const Program& program, const Stage& stage) {
  double largest = 0;
  for (const Use& use : stage.uses)
    if (use.value != kNoValue)
      largest =
          std::max(largest, static_cast<double>(num_bytes(program.values[static_cast<size_t>(use.value)])));
  return largest;
}

// Of the processor. Stores into windows take as many multiprocessors as comm.exchange_sms grants them.
double exchange_share(const Machine& m, const model::Mesh& mesh, const Stage& stage) {
  if (class_of(stage.op) == OpClass::Store && mesh.exchange_sms > 0 && m.kind == MachineKind::Gpu)
    return std::min(1.0, static_cast<double>(mesh.exchange_sms) / static_cast<double>(m.processor.units));
  return m.sharing.exchange;
}

}  // namespace

tensor::Dtype rate_dtype(const Program& program, const Stage& stage) {
  for (const Use& use : stage.uses)
    if (use.value != kNoValue) {
      const tensor::Dtype d = program.values[static_cast<size_t>(use.value)].dtype;
      if (has_rate(d)) return d;
    }
  return tensor::Dtype::F32;
}

double Pricer::rows_of(const Stage& stage) const {
  return p_.load && stage.layer >= 0 ? p_.load(stage.layer, stage.microbatch) : 1;
}

std::optional<Pricer::Known> Pricer::look_up(
    const Program& program, const Stage& stage, const kernels::Work& work,
    const std::function<double(const kernels::Work&)>& formula) const {
  if (!p_.table || !has_cost_key(stage)) return std::nullopt;
  const StageKey key = stage_key(program, stage);
  if (const CostEntry* entry = p_.table->find(key))
    return Known{entry->ns, p_.table_is_carried ? Priced::Carried : Priced::Measured};
  if (const auto ns =
          p_.table->ns(key, work, [&](const kernels::Work& w, const std::string&) { return formula(w); }))
    return Known{*ns, Priced::Carried};
  return std::nullopt;
}

void Pricer::count(Priced::From from, double ns) const {
  switch (from) {
    case Priced::Measured:
      ++sources_.measured, sources_.measured_ns += ns;
      return;
    case Priced::Carried:
      ++sources_.carried, sources_.carried_ns += ns;
      return;
    case Priced::ByCurve:
      ++sources_.by_curve, sources_.by_curve_ns += ns;
      return;
    case Priced::ByLink:
      ++sources_.exchanges, sources_.exchange_ns += ns;
      return;
  }
}

Pricer::Priced Pricer::price_kernel(const Program& program, const Stage& stage, double rows) const {
  const kernels::Work work = stage_work(program, stage, RoutedRows::Balanced);
  const CurveClass of = curve_class(kernel_of(stage.op), stage.phase, work);
  const tensor::Dtype dtype = rate_dtype(program, stage);
  const Curve& curve = p_.curves[of];
  const auto formula = [&](const kernels::Work& w) { return curve_ns(p_.machine, curve, dtype, w); };
  Priced out;
  double ns = formula(work);
  if (const auto known = look_up(program, stage, work, formula)) ns = known->ns, out.from = known->from;
  if (rows != 1) {
    const kernels::Work loaded = stage_work(program, stage, RoutedRows::Balanced, rows);
    ns *= formula(loaded) / std::max(1.0, formula(work));
    out.bytes = loaded.bytes;
  } else {
    out.bytes = work.bytes;
  }
  out.launches = std::max(work.launches, 1);
  out.fixed_ns = std::min(ns, p_.machine.processor.launch_us * 1e3 * out.launches * curve.launch);
  out.flow_ns = ns - out.fixed_ns;
  return out;
}

StageTime Pricer::exchange(const Program& program, const Stage& stage) const {
  const Machine& m = p_.machine;
  const ExchangeTime t = exchange_time(m, p_.reach, p_.mesh, program, stage, rows_of(stage));
  StageTime out;
  out.fixed_ns = whole(t.latency_ns + m.processor.launch_us * 1e3);
  out.flow_ns = whole(t.flow_ns());
  if (out.flow_ns > 0) {
    // A message takes one way, everything else both.
    const bool message = class_of(stage.op) == OpClass::Transfer,
               sends = kernel_of(stage.op) == KernelKind::send;
    if (!message || sends)
      out.of(Resource::LinkOut) = part(t.link_ns, t.flow_ns()),
      out.of(Resource::NetworkOut) = part(t.network_ns, t.flow_ns());
    if (!message || !sends)
      out.of(Resource::LinkIn) = part(t.link_ns, t.flow_ns()),
      out.of(Resource::NetworkIn) = part(t.network_ns, t.flow_ns());
    out.of(Resource::Processor) = static_cast<float>(exchange_share(m, p_.mesh, stage));
    out.crowds = !p_.links_measured;
    // Bytes are read here and written there.
    const double moved = 2 * (t.link_ns * m.node.link.gb_s + t.network_ns * m.network_gb_s());
    out.of(Resource::Memory) = part(moved / m.processor.memory_gb_s, t.flow_ns());
  }
  if (!p_.graph) out.host_ns = whole(m.processor.host_launch_us * 1e3);
  count(Priced::ByLink, t.total_ns());
  return out;
}

StageTime Pricer::host_copy(const Program& program, const Stage& stage, bool to_host) const {
  const Machine& m = p_.machine;
  const double bytes = largest_bytes(program, stage);
  StageTime out;
  out.fixed_ns = whole(m.processor.launch_us * 1e3);
  if (m.node.host_link_gb_s > 0) {
    const double launch_ns = m.processor.launch_us * 1e3;
    double ns = bytes / m.node.host_link_gb_s;
    Priced::From from = Priced::ByLink;
    const auto formula = [&](const kernels::Work& w) { return launch_ns + w.bytes / m.node.host_link_gb_s; };
    if (const auto known = look_up(program, stage, stage_work(program, stage, RoutedRows::Balanced), formula))
      ns = std::max(0.0, known->ns - launch_ns), from = known->from;
    count(from, launch_ns + ns);
    out.flow_ns = whole(ns);
    const float other = static_cast<float>(1 - m.node.host_link_both_gb_s / m.node.host_link_gb_s);
    out.of(Resource::HostOut) = to_host ? 1 : other;
    out.of(Resource::HostIn) = to_host ? other : 1;
    out.of(Resource::Processor) = static_cast<float>(m.sharing.host_copy);
    out.of(Resource::Memory) = part(bytes / m.processor.memory_gb_s, ns);
  }
  if (!p_.graph) out.host_ns = whole(m.processor.host_launch_us * 1e3);
  return out;
}

uint64_t Pricer::attrs_of(const Program& program, const Stage& stage) const {
  std::vector<uint64_t>& hashes = attr_hashes_[&program];
  if (hashes.size() != program.attrs.size()) {
    hashes.clear();
    for (const AttrSet& set : program.attrs) hashes.push_back(hash_of(set));
  }
  return hashes[static_cast<size_t>(stage.attrs)];
}

StageTime Pricer::operator()(const Program& program, const Stage& stage) const {
  const Machine& m = p_.machine;
  const OpClass op_class = class_of(stage.op);
  if (op_class == OpClass::Collective || op_class == OpClass::Transfer || op_class == OpClass::Store)
    return exchange(program, stage);
  const Lane& lane = program.lanes[static_cast<size_t>(stage.lane)];
  if (lane.resource == "host_link" && m.kind == MachineKind::Gpu)
    return host_copy(program, stage, lane.name == "d2h");
  StageTime out;
  if (op_class == OpClass::Host) {
    // The host learns that the lane has come here, and goes on to issue what follows.
    out.fixed_ns = whole((m.processor.host_launch_us + m.processor.launch_us) * 1e3);
    return out;
  }
  const double rows = rows_of(stage);
  const auto [known, fresh] = known_.try_emplace(alike(program, stage, rows, attrs_of(program, stage)));
  if (fresh) known->second = price_kernel(program, stage, rows);
  const Priced& k = known->second;
  out.fixed_ns = static_cast<int64_t>(std::min(k.fixed_ns, kMaxStageNs));
  out.flow_ns = whole(k.fixed_ns + k.flow_ns) - out.fixed_ns;
  out.of(Resource::Processor) = m.kind == MachineKind::Cpu ? static_cast<float>(p_.threads) : 1.0F;
  out.of(Resource::Memory) = part(k.bytes / m.processor.memory_gb_s, k.flow_ns);
  if (m.kind == MachineKind::Cpu) out.of(Resource::Memory) = 0;  // cores share it: crowding says by how much
  if (!p_.graph) out.host_ns = whole(m.processor.host_launch_us * 1e3 * k.launches);
  count(k.from, k.fixed_ns + k.flow_ns);
  return out;
}

CurvePoint curve_point(const CostEntry& entry) {
  std::istringstream words(entry.key.kind);
  std::string kernel, phase, word;
  words >> kernel >> phase;
  CurvePoint out;
  out.work = entry.work, out.ns = entry.ns;
  out.weight = static_cast<double>(entry.seen);
  const KernelKind* kind = nullptr;
  static const std::vector<KernelKind> kinds = [] {
    std::vector<KernelKind> all;
    for (int i = 0; i < num_ops(); ++i) all.push_back(kernel_of(static_cast<Op>(i)));
    return all;
  }();
  for (const KernelKind& k : kinds)
    if (name_of(k) == kernel) kind = &k;
  if (!kind) base::fail("a costs file names the kernel '{}', which this build does not have", kernel);
  Phase p = Phase::Update;
  for (const Phase candidate : {Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight, Phase::Update})
    if (name_of(candidate) == phase) p = candidate;
  out.of = curve_class(*kind, p, entry.work);
  out.dtype = tensor::Dtype::F32;
  while (words >> word) {
    const std::string type = word.substr(0, word.find_first_of("+@"));
    // Other words are attributes; types of lists stand in brackets.
    const auto known = tensor::find_dtype(type);
    if (!known || !has_rate(*known)) continue;
    out.dtype = *known;
    break;
  }
  return out;
}

}  // namespace pleat::cost
