#include "verify/layout_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "comm/local/local_world.h"
#include "model/overflow.h"
#include "model/shard.h"
#include "model/state.h"
#include "program/signature.h"
#include "program/value_name.h"
#include "runtime/keep.h"
#include "runtime/programs.h"
#include "tensor/bf16.h"
#include "tensor/block_codes.h"
#include "tensor/short_master.h"
#include "verify/batch.h"
#include "verify/faults.h"
#include "verify/narrow.h"

namespace pleat::verify {
namespace {

using program::Group;

double number(const void* data, tensor::Dtype dtype, int64_t i) {
  switch (dtype) {
    case tensor::Dtype::F64:
      return static_cast<const double*>(data)[i];
    case tensor::Dtype::BF16:
      return static_cast<double>(tensor::widened(static_cast<const uint16_t*>(data)[i]));
    default:
      return static_cast<double>(static_cast<const float*>(data)[i]);
  }
}

// Collects what the ranks hold into logical tensors; an element two ranks hold must be the same.
class Assembly {
 public:
  explicit Assembly(const std::vector<model::Parameter>& table) : table_(table) {}

  // Elements [begin, begin + count) of the rank's local tensor.
  void add(std::map<std::string, Tensor>& into, const model::Parameter& p,
           const std::vector<model::Run>& runs, const void* data, tensor::Dtype dtype, int64_t begin,
           int64_t count) {
    std::lock_guard lock(mutex_);
    Tensor& to = into[p.name];
    if (to.empty()) to.assign(static_cast<size_t>(model::num_elements(p)), kMissing);
    for (const model::Run& run : runs)
      for (int64_t i = std::max(run.local_begin, begin);
           i < std::min(run.local_begin + run.count, begin + count); ++i) {
        double& slot = to[static_cast<size_t>(run.logical_begin + i - run.local_begin)];
        const double value = number(data, dtype, i - begin);
        if (slot != kMissing && !same(slot, value))
          base::fail("{}: element {} is {} on one rank and {} on another", p.name,
                     run.logical_begin + i - run.local_begin, slot, value);
        slot = value;
      }
  }

  void require_whole(const std::map<std::string, Tensor>& tensors, const char* what, bool with_frozen) const {
    for (const model::Parameter& p : table_) {
      if (!p.tied_to.empty() || (!with_frozen && p.frozen)) continue;
      const auto it = tensors.find(p.name);
      if (it == tensors.end()) base::fail("no rank holds the {} of {}", what, p.name);
      for (size_t i = 0; i < it->second.size(); ++i)
        if (it->second[i] == kMissing)
          base::fail("no rank holds element {} of the {} of {}", i, what, p.name);
    }
  }

 private:
  static constexpr double kMissing = -1.2345678901234567e308;
  static bool same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }
  const std::vector<model::Parameter>& table_;
  std::mutex mutex_;
};

// Thread ranks with the programs of enqueued calls, which they make themselves, one after the other.
class OneChain final : public comm::Endpoint {
 public:
  explicit OneChain(std::unique_ptr<comm::Endpoint> threads) : threads_(std::move(threads)) {}
  int rank() const override { return threads_->rank(); }
  int size() const override { return threads_->size(); }
  std::unique_ptr<comm::Communicator> group(const std::string& name, std::span<const int> ranks,
                                            comm::Buffers buffers, void* stream) override {
    return threads_->group(name, ranks, buffers, stream);
  }
  std::string why_no_windows(std::span<const int> ranks, comm::Buffers buffers) override {
    return threads_->why_no_windows(ranks, buffers);
  }
  std::unique_ptr<comm::SharedWindows> share_windows(std::span<const int> ranks, comm::Buffers buffers,
                                                     const std::shared_ptr<std::byte>& memory) override {
    return threads_->share_windows(ranks, buffers, memory);
  }
  std::unique_ptr<comm::Communicator> window_group(const std::string& name, std::span<const int> ranks,
                                                   comm::SharedWindows& windows, comm::Buffers buffers,
                                                   void* stream) override {
    return threads_->window_group(name, ranks, windows, buffers, stream);
  }
  program::Meeting meeting(comm::Buffers) const override { return program::Meeting::OnDevice; }

 private:
  std::unique_ptr<comm::Endpoint> threads_;
};

class Rank {
 public:
  Rank(const config::Config& config, const std::vector<model::Parameter>& table,
       const runtime::RankSetup& setup, comm::Endpoint& endpoint, const RunOptions& options)
      : config_(config),
        table_(table),
        options_(options),
        setup_(setup),
        crew_(setup, endpoint, 1),
        narrow_(options.narrow ? narrow_names(config, table, {options.routing, setup.mesh, setup.role})
                               : std::set<std::string>()),
        programs_(config, choice(), &crew_) {
    programs_.initialize();
    if (options_.weight) set_weights();
  }

  void step(const Batch& batch, int64_t step, const std::vector<int32_t>& piece) {
    if (options_.routing == model::RoutingUse::Replay)
      replay_ = &options_.replay.at(options_.replay.size() == 1 ? 0 : size_t(step - 1));
    piece_ = piece;
    now_ = &programs_.train();
    run(batch, step);
    if (!now_->has(program::step::overflow)) return;
    const std::string fault = model::overflow_fault(now_->at(program::step::overflow), config_, setup_.mesh);
    if (fault.empty()) return;
    // Nobody wrote a weight: the step never was.
    if (now_->at(program::step::commit)[0] != 0)
      base::fail_with(base::ExitCode::Internal, "step {} was committed: {}", step, fault);
    if (config_.moe.overflow != "rerun") base::fail("step {}: {}", step, fault);
    now_ = programs_.rerun();
    run(batch, step);
  }

  // A rank that goes its own way, as after a reduction that forgot it.
  void drift() {
    PLEAT_CHECK(config_.model.dtype == "float64", "ranks drift in float64 only");
    for (const model::Parameter& p : table_)
      if (p.parameter_class == model::ParameterClass::Router &&
          setup_.place.rank == setup_.mesh.world() - 1 && find(p.name))
        *reinterpret_cast<double*>(programs_.target(p.name).bytes.host().data()) += 1e-3;
  }

  // Weights as a forward would see them, from their owners. Results of the step are gone behind this.
  void gather_weights() { programs_.gather_weights(); }

  // Of a narrow weight the float it stands for, from who owns it; what products see goes to `stored`.
  void collect_weights(std::map<std::string, Tensor>& out, std::map<std::string, Tensor>& stored,
                       Assembly& assembly) {
    for (const model::Parameter& p : table_) {
      if (!p.tied_to.empty() || !find(p.name)) continue;
      const bool whole = find(p.name + model::kRest);
      add(whole ? stored : out, assembly, p, p.name, false);
      if (whole) add_joined(out, assembly, p);
    }
  }

  void collect(StepResults& out, Assembly& assembly, std::mutex& mutex) {
    for (size_t i = 0; i < table_.size(); ++i) {
      const model::Parameter& p = table_[i];
      if (!p.tied_to.empty() || !find(p.name)) continue;
      const bool shared = model::ownership(p, setup_.mesh).summed();
      std::string name = p.name + (shared ? ".grad_share" : ".grad");
      if (!find(name)) continue;  // the tied weight where its embedding is not
      add(out.gradients, assembly, p, name, shared);
    }
    std::lock_guard lock(mutex);
    namespace step = program::step;
    const std::span<const double> loss = now_->at(step::loss), scale = now_->at(step::grad_scale);
    out.committed = now_->at(step::commit)[0] != 0;
    out.rerun = now_ == programs_.rerun();
    out.loss = loss[0] / std::max(loss[1], 1.0);
    out.norm = scale[0];
    if (out.committed) update_norm_ = out.norm;
    out.clip = scale[1];
    if (now_->has(step::code_counts)) {
      const auto counts = now_->at(step::code_counts);
      const auto largest = now_->at(step::code_largest);
      out.code_counts.assign(counts.begin(), counts.end());
      out.code_largest.assign(largest.begin(), largest.end());
    }
    for (int layer = 0; layer < config::num_all_layers(config_); ++layer) {
      collect_rows(out, layer);
      if (!now_->has(step::load, layer) || options_.gradient) continue;
      LayerResults& r = out.layers[layer];
      const std::span<const int64_t> load = now_->at(step::load, layer);
      r.load.assign(load.begin(), load.end());
      r.dropped = now_->at(step::dropped, layer)[0];
      collect_bias(r, layer);
      if (now_->has(step::aux_losses, layer)) {
        const std::span<const double> losses = now_->at(step::aux_losses, layer);
        r.losses.assign(losses.begin(), losses.end());
      }
    }
  }

  void collect(LayoutRun& out, Assembly& assembly) {
    gather_weights();
    collect_weights(out.weights, out.stored, assembly);
    for (const model::Parameter& p : table_) {
      if (!p.tied_to.empty() || !find(p.name)) continue;
      for (const model::StateSlot& s : model::optimizer_of(config_, p).states) {
        if (s.coding != model::Coding::None)
          add_decoded(out.states.at(s.name), assembly, p, s);
        else if (model::is_number(s))
          add(out.states.at(s.name), assembly, p, p.name + s.name, true);
      }
    }
  }

  // What the program says about the updates.
  void collect_updates(LayoutRun& out, std::mutex& mutex) const {
    std::lock_guard lock(mutex);
    const program::Program& p = programs_.program();
    const auto add = [&](const program::Stage& s, const program::Use& weight) {
      out.updates[p.values[static_cast<size_t>(program::root_of(p, weight.value))].name] =
          p.attrs[static_cast<size_t>(s.attrs)];
    };
    for (const program::Stage& s : p.stages) {
      if (s.op == program::Op::adamw) add(s, program::signature::adamw::Update<program::Use>(s.uses).w);
      if (s.op == program::Op::adamw_narrow)
        add(s, program::signature::adamw_narrow::Update<program::Use>(s.uses).w);
      if (s.op == program::Op::adamw_coded)
        add(s, program::signature::adamw_coded::Update<program::Use>(s.uses).w);
    }
  }

 private:
  runtime::ProgramChoice choice() {
    runtime::ProgramChoice out;
    out.evaluate = false;
    out.nan_memory = true;
    out.build = {options_.routing, setup_.mesh, setup_.role};
    out.edit = [this](program::Program p) { return prepared(std::move(p)); };
    return out;
  }

  // A step with everything kept that is looked at, and the fault that is asked for.
  program::Program prepared(program::Program step) const {
    const auto tapped = [&](const program::Value& v) {
      return v.layer >= 0 && std::find(options_.taps.begin(), options_.taps.end(), program::what_of(v)) !=
                                 options_.taps.end();
    };
    if (options_.narrow) step = with_narrow_stores(std::move(step), narrow_);
    step = runtime::with_results(std::move(step), [&](const program::Value& v) {
      return v.name.ends_with(".grad") || v.name.ends_with(".grad_share") || tapped(v);
    });
    if (options_.fault != Fault::None)
      step = with_fault(std::move(step), options_.fault, setup_.place, setup_.mesh, table_.size());
    return options_.gradient ? only_update(std::move(step)) : step;
  }

  void run(const Batch& batch, int64_t step) {
    write_batch(*now_, config_, setup_.mesh, setup_.place, batch, step, update_norm_);
    for (int64_t i = 0; i < config_.train.num_microbatches && setup_.mesh.pieces > 1; ++i)
      std::copy(piece_.begin(), piece_.end(), now_->at(program::step::piece, i).begin());
    each_routing([&](const std::string& name, int32_t* to, int64_t row, int64_t t, int64_t k) {
      if (options_.routing == model::RoutingUse::Replay)
        std::copy_n(replay_->at(name).data() + row * k, k, to + t * k);
    });
    if (options_.gradient)
      for (const model::Parameter& p : table_) {
        if (!find(p.name + ".grad")) continue;
        const int64_t n = program::num_elements(now_->program().values[size_t(now_->find(p.name + ".grad"))]);
        double* to = static_cast<double*>(data(p.name + ".grad"));
        for (int64_t i = 0; i < n; ++i) to[i] = options_.gradient(p, setup_.place, i);
      }
    interpret::RunOptions run;
    if (options_.delay_seed) run.delay_seed = options_.delay_seed + static_cast<uint64_t>(setup_.place.rank);
    run.poison = options_.poison;
    run.in_order = options_.one_chain;
    now_->run(run);
  }

  // Calls fn(name, data, natural row, own row, width) for every row of every layer's stored choices.
  template <class Fn>
  void each_routing(Fn fn) {
    if (options_.routing == model::RoutingUse::Choose) return;
    each_row("routing", [&](const std::string& name, ValueRows v, int64_t row, int64_t t) {
      fn(name, static_cast<int32_t*>(v.data), row, t, v.width);
    });
  }

  struct ValueRows {
    void* data;
    int64_t width;
    tensor::Dtype dtype;
  };

  // fn("mb0.L1", value, natural row, own row) for the value `what` of every microbatch and layer here.
  template <class Fn>
  void each_row(const std::string& what, Fn fn) {
    const std::vector<int32_t> rows =
        runtime::context_rows(config_, setup_.mesh, setup_.place.at(Group::Context));
    const int64_t own = static_cast<int64_t>(rows.size()) / setup_.mesh.tp,
                  first = own * setup_.place.at(Group::Tensor);
    for (int64_t mb = 0; mb < config_.train.num_microbatches / setup_.mesh.dp; ++mb)
      for (int64_t layer = 0; layer < config::num_all_layers(config_); ++layer) {
        const std::string name = fmt::format("mb{}.L{}.{}", mb, layer, what);
        if (!find(name)) continue;
        const program::Value& v = now_->program().values[size_t(now_->find(name))];
        const ValueRows value{data(name), program::num_elements(v) / v.shape[0], v.dtype};
        PLEAT_CHECK(v.shape[0] == own, "{} has {} rows, this rank {}", name, v.shape[0], own);
        for (int64_t t = 0; t < own; ++t)
          fn(fmt::format("mb{}.L{}", mb * setup_.mesh.dp + setup_.place.at(Group::Data), layer), value,
             int64_t{rows[size_t(first + t)]}, t);
      }
  }

  void collect_bias(LayerResults& out, int layer) const {
    const std::string name = fmt::format("layers.{}.router.expert_bias", layer);
    if (!find(name)) return;
    std::vector<float> bias(static_cast<size_t>(config_.moe.num_experts));
    programs_.read(name, std::as_writable_bytes(std::span(bias)));
    if (!out.bias.empty() && out.bias != bias)
      base::fail("{}: rank {} has another one than the ranks before it", name, setup_.place.rank);
    out.bias = bias;
  }

  void collect_rows(StepResults& out, int layer) {
    if (layer != 0) return;
    const size_t all = static_cast<size_t>(config_.train.micro_batch * config_.train.seq_len);
    if (options_.routing == model::RoutingUse::Record)
      each_row("routing", [&](const std::string& name, ValueRows v, int64_t row, int64_t t) {
        auto& to = out.routing[name];
        to.resize(all * static_cast<size_t>(v.width));
        std::copy_n(static_cast<const int32_t*>(v.data) + t * v.width, v.width, to.data() + row * v.width);
      });
    for (const std::string& tap : options_.taps)
      each_row(tap, [&](const std::string& name, ValueRows v, int64_t row, int64_t t) {
        Tensor& to = out.taps[name + "." + tap];
        to.resize(all * static_cast<size_t>(v.width));
        for (int64_t i = 0; i < v.width; ++i)
          to[static_cast<size_t>(row * v.width + i)] = number(v.data, v.dtype, t * v.width + i);
      });
  }

  // Of a step: the host reaches it.
  void* data(const std::string& name) const { return now_->data(now_->find(name)); }
  // Of the state.
  std::vector<std::byte> state(const std::string& name) const { return programs_.target(name).bytes.copy(); }

  bool find(const std::string& name) const {
    for (const program::Value& v : now_->program().values)
      if (v.name == name) return true;
    return false;
  }

  void add(std::map<std::string, Tensor>& into, Assembly& assembly, const model::Parameter& p,
           const std::string& name, bool share) {
    const auto runs = model::local_runs(p, setup_.mesh, setup_.place.weights());
    const model::Ownership own = model::ownership(p, setup_.mesh);
    const int64_t begin = share ? std::min(own.share * setup_.place.at(own.inside), own.elements) : 0;
    const int64_t count = share ? std::min(own.elements - begin, own.share) : own.elements;
    const program::Value& v = now_->program().values[size_t(now_->find(name))];
    if (v.life == program::Life::Persistent)
      assembly.add(into, p, runs, state(name).data(), v.dtype, begin, count);
    else
      assembly.add(into, p, runs, data(name), v.dtype, begin, count);
  }

  void add_joined(std::map<std::string, Tensor>& into, Assembly& assembly, const model::Parameter& p) {
    const model::Ownership own = model::ownership(p, setup_.mesh);
    const int64_t begin = std::min(own.share * setup_.place.at(own.inside), own.elements),
                  count = std::min(own.elements - begin, own.share);
    const std::vector<std::byte> highs = state(p.name), rests = state(p.name + model::kRest);
    const auto* high = reinterpret_cast<const uint16_t*>(highs.data()) + begin;
    const void* rest = rests.data();
    const bool is_short =
        now_->program().values[size_t(now_->find(p.name + model::kRest))].dtype == tensor::Dtype::U8;
    std::vector<float> joined(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      joined[size_t(i)] = is_short ? tensor::join_short(high[i], static_cast<const int8_t*>(rest)[i])
                                   : tensor::join(high[i], static_cast<const int16_t*>(rest)[i]);
    assembly.add(into, p, model::local_runs(p, setup_.mesh, setup_.place.weights()), joined.data(),
                 tensor::Dtype::F32, begin, count);
  }

  void add_decoded(std::map<std::string, Tensor>& into, Assembly& assembly, const model::Parameter& p,
                   const model::StateSlot& slot) {
    const model::Ownership own = model::ownership(p, setup_.mesh);
    const int64_t begin = std::min(own.share * setup_.place.at(own.inside), own.elements),
                  count = std::min(own.elements - begin, own.share);
    const std::vector<std::byte> code_bytes = state(p.name + slot.name),
                                 scale_bytes = state(p.name + slot.name + model::kScale);
    const auto* codes = reinterpret_cast<const uint8_t*>(code_bytes.data());
    const auto* scales = reinterpret_cast<const float*>(scale_bytes.data());
    std::vector<double> numbers(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      numbers[size_t(i)] =
          static_cast<double>(model::decoded(slot.coding, codes[i], scales[i / tensor::kCodeBlock]));
    assembly.add(into, p, model::local_runs(p, setup_.mesh, setup_.place.weights()), numbers.data(),
                 tensor::Dtype::F64, begin, count);
  }

  void set_weights() {
    for (const model::Parameter& p : table_) {
      if (!p.tied_to.empty() || !find(p.name)) continue;
      const checkpoint::Target& t = programs_.target(p.name);
      PLEAT_CHECK(t.dtype != tensor::Dtype::BF16, "{}: initial weights are given in a wide type", p.name);
      std::vector<std::byte> numbers = t.bytes.copy();
      for (const model::Run& run : model::local_runs(p, setup_.mesh, setup_.place.weights()))
        for (int64_t i = 0; i < run.count; ++i) {
          const int64_t at = run.local_begin + i;
          const double value = options_.weight(p, run.logical_begin + i, number(numbers.data(), t.dtype, at));
          if (t.dtype == tensor::Dtype::F64)
            reinterpret_cast<double*>(numbers.data())[at] = value;
          else
            reinterpret_cast<float*>(numbers.data())[at] = static_cast<float>(value);
        }
      t.bytes.write(0, numbers);
    }
  }

  const config::Config& config_;
  const std::vector<model::Parameter>& table_;
  const RunOptions& options_;
  runtime::RankSetup setup_;
  runtime::Crew crew_;
  std::set<std::string> narrow_;
  runtime::Programs programs_;
  interpret::Executor* now_ = &programs_.train();
  std::vector<int32_t> piece_;
  double update_norm_ = 0;  // of the gradients of the last update
  const Routing* replay_ = nullptr;
};

}  // namespace

LayoutRun run_layout(const config::Config& asked, const model::Mesh& mesh,
                     const std::vector<model::Role>& roles, const RunOptions& options) {
  config::Config config = asked;
  config.parallel = {};  // the mesh says it
  const std::vector<model::Parameter> table = model::make_parameters(config);
  LayoutRun out;
  out.steps.resize(static_cast<size_t>(options.num_steps));
  // Ranks are threads: all of them find the maps that they fill.
  for (const model::StateSlot& s : model::optimizer_of(config).states)
    if (model::is_number(s)) out.states[s.name];
  PLEAT_CHECK(!options.one_chain || config.device.kind == "cpu",
              "one chain of calls that block is for the CPU");
  std::vector<Batch> batches;
  for (int64_t s = 1; s <= options.num_steps; ++s)
    batches.push_back(options.batches.empty() ? random_batch(config, options.seed, s)
                                              : options.batches.at(static_cast<size_t>(s - 1)));
  const std::vector<int32_t> piece = pieces_of(config, options.pieces_of);
  Assembly assembly(table);
  std::map<std::string, Tensor> stored_initially;
  std::mutex mutex;
  comm::Options comm;
  comm.check = true;
  comm.timeout_seconds = 60;
  comm::LocalWorld world(static_cast<int>(mesh.world()), comm);
  comm::run_ranks(world, [&](int rank) {
    runtime::RankSetup setup{mesh, model::whole_model(config.model.num_layers),
                             runtime::rank_place(mesh, rank)};
    if (!roles.empty()) setup.role = roles[static_cast<size_t>(setup.place.at(Group::Pipeline))];
    std::unique_ptr<comm::Endpoint> endpoint = world.endpoint(rank);
    if (options.one_chain) endpoint = std::make_unique<OneChain>(std::move(endpoint));
    Rank r(config, table, setup, *endpoint, options);
    r.collect_updates(out, mutex);
    if (options.weights_each_step) r.collect_weights(out.initial, stored_initially, assembly);
    for (int64_t s = 1; s <= options.num_steps; ++s) {
      r.step(batches[static_cast<size_t>(s - 1)], s, piece);
      StepResults& results = out.steps[static_cast<size_t>(s - 1)];
      r.collect(results, assembly, mutex);
      if (options.weights_each_step) r.gather_weights();
      if (options.fault == Fault::Drift) r.drift();
      if (options.weights_each_step) r.collect_weights(results.weights, results.stored, assembly);
    }
    r.collect(out, assembly);
  });
  for (const StepResults& s : out.steps) assembly.require_whole(s.gradients, "gradient", false);
  assembly.require_whole(out.weights, "weight", true);
  for (const auto& [name, of_all] : out.states) assembly.require_whole(of_all, name.c_str(), false);
  return out;
}

}  // namespace pleat::verify
