#include "exchange/probe.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "exchange/weights.h"
#include "model/decoder.h"
#include "program/value_name.h"
#include "runtime/constants.h"
#include "runtime/keep.h"
#include "runtime/runtime.h"
#include "runtime/step_inputs.h"
#include "safetensors/convert.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"

namespace pleat::exchange {
namespace {

using runtime::Runtime;

struct Tokens {
  int64_t batch = 0, length = 0;
  std::vector<int32_t> ids;
};

Tokens read_tokens(const std::string& path, int64_t vocab) {
  const safetensors::File file = safetensors::File::open(path);
  const safetensors::TensorInfo& info = file.at("input_ids");
  if (info.shape.size() != 2 ||
      (info.type != safetensors::ElementType::I64 && info.type != safetensors::ElementType::I32))
    base::fail("{}: input_ids is {} {}, needed I64 or I32 [batch, length]", path,
               safetensors::name_of(info.type), safetensors::shape_text(info.shape));
  if (info.shape[0] < 1 || info.shape[1] < 2)
    base::fail("{}: input_ids is {}; at least one sequence of two tokens is needed", path,
               safetensors::shape_text(info.shape));
  Tokens out{info.shape[0], info.shape[1], {}};
  std::vector<std::byte> raw(static_cast<size_t>(info.num_bytes()));
  file.read("input_ids", raw);
  for (int64_t i = 0; i < info.num_elements(); ++i) {
    int64_t id = 0;
    if (info.type == safetensors::ElementType::I64) {
      std::memcpy(&id, raw.data() + i * 8, 8);
    } else {
      int32_t small = 0;
      std::memcpy(&small, raw.data() + i * 4, 4);
      id = small;
    }
    if (id < 0 || id >= vocab)
      base::fail("{}: token {} at position {} is outside the vocabulary of {}", path, id, i, vocab);
    out.ids.push_back(static_cast<int32_t>(id));
  }
  return out;
}

void write_inputs(Runtime& bound, const config::Config& c, const Tokens& tokens, bool training) {
  namespace step = program::step;
  interpret::Executor& e = bound.executor();
  const int64_t n = tokens.batch * tokens.length;
  for (int64_t t = 0; t < n; ++t) {
    const auto i = static_cast<size_t>(t);
    const int64_t row = t / tokens.length * tokens.length;
    e.at(step::tokens, 0)[i] = tokens.ids[i];
    e.at(step::positions, 0)[i] = static_cast<int32_t>(t - row);
    e.at(step::doc_start, 0)[i] = static_cast<int32_t>(row);
    e.at(step::valid, 0)[i] = 1;
    e.at(step::token_index, 0)[i] = t;
    if (!training) continue;
    const bool predicted = (t + 1) % tokens.length != 0;
    e.at(step::labels, 0)[i] = predicted ? tokens.ids[i + 1] : 0;
    e.at(step::loss_mask, 0)[i] = predicted;
  }
  runtime::write_rng(e, c.train.seed, 0);
  runtime::write_constants(bound, c.model, {});
  if (training) runtime::write_norm(e, {n, n - tokens.batch, n, tokens.batch}, 1);
}

// The training step without its update: gradients are all that is wanted.
program::Program gradient_program(const config::Config& c, const std::vector<model::Parameter>& table) {
  return runtime::with_results(runtime::without_update(schedule::build_training_step(c, table)),
                               [](const program::Value& v) { return v.owner == program::Owner::Gradients; });
}

std::string choice_of(int64_t layer) { return fmt::format("mb0.L{}.expert_idx", layer); }
std::string routing_name(int64_t layer) { return fmt::format("routing.{}", layer); }
constexpr const char* kGiven = ".given";

// Every router takes its experts from an input of its own, named after what it would have chosen.
program::Program with_given_routing(program::Program p) {
  constexpr size_t kGivenAt = 3, kChosenAt = 4;  // logits expert_bias? valid given? -> idx ...
  for (program::Stage& s : p.stages) {
    if (s.op != program::Op::router_choose || s.phase != program::Phase::Forward) continue;
    program::Value given = p.values[static_cast<size_t>(s.uses[kChosenAt].value)];
    given.name += kGiven;
    given.life = program::Life::Input;
    given.owner = program::Owner::Inputs;
    s.uses[kGivenAt] = {static_cast<program::ValueId>(p.values.size()), program::Access::Read};
    p.values.push_back(std::move(given));
  }
  return p;
}

void write_routing(Runtime& bound, const config::Config& c, const Tokens& tokens, const std::string& path) {
  const safetensors::File file = safetensors::File::open(path);
  const std::vector<int64_t> shape = {tokens.batch, tokens.length, c.moe.top_k};
  for (int64_t layer = 0; layer < config::num_all_layers(c); ++layer) {
    if (!config::is_moe_layer(c, layer)) continue;
    const std::string name = routing_name(layer);
    const safetensors::TensorInfo& info = file.at(name);
    if (info.type != safetensors::ElementType::I32 || info.shape != shape)
      base::fail("{}: {} is {} {}, needed I32 {}", path, name, safetensors::name_of(info.type),
                 safetensors::shape_text(info.shape), safetensors::shape_text(shape));
    auto* to = static_cast<int32_t*>(bound.executor().data(choice_of(layer) + kGiven));
    file.read(name, std::span(reinterpret_cast<std::byte*>(to), static_cast<size_t>(info.num_bytes())));
    for (int64_t i = 0; i < info.num_elements(); ++i)
      if (to[i] < 0 || to[i] >= c.moe.num_experts || (i % c.moe.top_k != 0 && to[i] <= to[i - 1]))
        base::fail("{}: {} has expert {} at element {}; needed are ascending ones below {}", path, name,
                   to[i], i, c.moe.num_experts);
  }
}

// Collects tensors, then writes them in one file.
class Output {
 public:
  Output(std::string path, tensor::Dtype dtype)
      : path_(std::move(path)),
        type_(dtype == tensor::Dtype::F64 ? safetensors::ElementType::F64 : safetensors::ElementType::F32) {}
  void add(std::string name, std::vector<int64_t> shape, const void* data) {
    add(std::move(name), std::move(shape), data, type_);
  }
  void add(std::string name, std::vector<int64_t> shape, const void* data, safetensors::ElementType type) {
    int64_t n = safetensors::size_of(type);
    for (int64_t d : shape) n *= d;
    const auto* bytes = static_cast<const std::byte*>(data);
    data_.emplace_back(bytes, bytes + n);
    specs_.push_back({std::move(name), type, std::move(shape)});
  }
  // As the program has it; bf16 is written as F32, which holds it exactly.
  void add_value(std::string name, std::vector<int64_t> shape, const Runtime& bound,
                 const std::string& value) {
    const program::Value& v = bound.program().values[static_cast<size_t>(bound.executor().find(value))];
    const void* data = bound.executor().data(value);
    if (v.dtype != tensor::Dtype::BF16) return add(std::move(name), std::move(shape), data);
    std::vector<float> wide(static_cast<size_t>(program::num_elements(v)));
    safetensors::decode(safetensors::ElementType::BF16,
                        std::span(static_cast<const std::byte*>(data), wide.size() * 2), std::span(wide));
    add(std::move(name), std::move(shape), wide.data());
  }
  void add_scalar(std::string name, double number) {
    if (type_ == safetensors::ElementType::F64) return add(std::move(name), {1}, &number);
    const float narrow = static_cast<float>(number);
    add(std::move(name), {1}, &narrow);
  }
  safetensors::ElementType type() const { return type_; }
  int64_t write() const {
    safetensors::Writer writer(path_, specs_);
    for (size_t i = 0; i < specs_.size(); ++i) writer.append(specs_[i].name, data_[i]);
    writer.finish();
    return static_cast<int64_t>(specs_.size());
  }

 private:
  std::string path_;
  safetensors::ElementType type_;
  std::vector<safetensors::TensorSpec> specs_;
  std::vector<std::vector<std::byte>> data_;
};

}  // namespace

ProbeResult probe(const ProbeOptions& o) {
  namespace step = program::step;
  family::FamilyConfig model = family::read_model_config(o.model_folder);
  const Tokens tokens = read_tokens(o.tokens_path, model.config.model.vocab_size);
  std::vector<std::string> sets = {
      fmt::format("model.dtype=\"{}\"", o.dtype),     fmt::format("train.micro_batch={}", tokens.batch),
      fmt::format("train.seq_len={}", tokens.length), "train.num_microbatches=1",
      "device.threads=" + std::to_string(o.threads),  fmt::format("device.kind=\"{}\"", o.device)};
  model.config.model.num_mtp_layers = 0;
  if (model.aux_coef != 0 && model.config.moe.load_balancing == std::vector<std::string>{"none"}) {
    // Written whether or not the file trains with it; gradients are the loss's alone unless asked.
    model.config.moe.load_balancing = {"aux"};
    model.config.moe.aux_coef = {model.aux_coef};
    model.config.moe.aux_convention = "hf";
  }
  if (o.dtype == "float64" && model.config.moe.num_experts > 0)
    sets.push_back("moe.router_dtype=\"float64\"");
  sets.insert(sets.end(), o.sets.begin(), o.sets.end());
  model.config = config::resolve(config::parse(config::to_toml(model.config), sets, o.model_folder));
  const config::Config& c = model.config;
  const int threads = static_cast<int>(c.device.threads);
  const auto table = model::make_parameters(c);
  const safetensors::ModelFolder folder = safetensors::ModelFolder::open(o.model_folder);
  const int64_t L = c.model.num_layers;

  ProbeResult result;
  result.note = family::quantization_note(model);
  const auto is_wanted = [&](const program::Value& v) {
    if (v.name == "mb0.embedded" || v.name == "mb0.final_normed") return true;
    if (v.microbatch != 0 || v.layer < 0) return false;
    const std::string_view what = program::what_of(v);
    return what == "x_out" || (o.routing && (what == "expert_idx" || what == "router_logits"));
  };
  const auto routed = [&](program::Program p) {
    return o.routing_from.empty() ? p : with_given_routing(std::move(p));
  };
  const runtime::Device device = runtime::device_of(c.device.kind);
  // As the kernels are, one by one: what is compared with other libraries is each of them, and no codes.
  const auto passed = [&](program::Program p) {
    return schedule::apply_passes(std::move(p), c, {.disabled = {"fuse", "low_precision"}});
  };
  Runtime forward(
      passed(runtime::with_results(routed(schedule::build_logits(c, table, tokens.batch)), is_wanted)),
      threads, device);
  load_weights(folder, model, table, forward.targets());
  // All inputs, before every run: a run may take their memory for something else.
  const auto write_all = [&](Runtime& bound, bool training) {
    write_inputs(bound, c, tokens, training);
    if (!o.routing_from.empty()) write_routing(bound, c, tokens, o.routing_from);
  };
  write_all(forward, false);
  forward.executor().run();
  const tensor::Dtype dtype =
      forward.program().values[static_cast<size_t>(forward.executor().find(step::logits.key(0)))].dtype;
  Output out(o.out_path, dtype);
  out.add_value("logits", {tokens.batch, tokens.length, c.model.vocab_size}, forward,
                step::logits.name(0).text);
  const std::vector<int64_t> hidden = {tokens.batch, tokens.length, c.model.hidden_size};
  out.add_value("hidden.0", hidden, forward, "mb0.embedded");
  for (int64_t i = 0; i < L; ++i)
    out.add_value(fmt::format("hidden.{}", i + 1), hidden, forward,
                  i + 1 < L ? fmt::format("mb0.L{}.x_out", i) : "mb0.final_normed");

  for (int64_t i = 0; o.routing && i < L; ++i)
    if (config::is_moe_layer(c, i)) {
      out.add(routing_name(i), {tokens.batch, tokens.length, c.moe.top_k},
              forward.executor().data(choice_of(i)), safetensors::ElementType::I32);
      const program::ValueId logits = forward.executor().find(fmt::format("mb0.L{}.router_logits", i));
      out.add(fmt::format("router_logits.{}", i), {tokens.batch, tokens.length, c.moe.num_experts},
              forward.executor().data(logits),
              safetensors::element_type_of(forward.program().values[static_cast<size_t>(logits)].dtype));
    }

  Runtime backward(passed(routed(gradient_program(c, table))), threads, device);
  load_weights(folder, model, table, backward.targets());
  write_all(backward, true);
  backward.executor().run();
  const std::span<const double> loss = backward.executor().at(step::loss);
  result.loss = loss[0] / loss[1];
  out.add_scalar("loss", result.loss);
  for (int64_t k = 0; k < c.model.num_mtp_layers; ++k) {
    const std::span<const double> mtp = backward.executor().at(step::mtp_loss, L + k);
    out.add_scalar(fmt::format("mtp_loss.{}", k + 1), mtp[0] / std::max(mtp[1], 1.0));
  }
  const model::AuxCoefficients aux = model::aux_coefficients(c);
  if (aux.micro != 0) {
    result.has_aux_loss = true;
    for (int64_t i = 0; i < config::num_all_layers(c); ++i)
      if (config::is_moe_layer(c, i)) result.aux_loss += backward.executor().at(step::aux_losses, i)[0];
    out.add_scalar(aux.hf ? "aux_loss_hf" : "aux_loss", result.aux_loss);
  }
  if (o.gradients) {
    if (aux.any() && !o.aux_gradients) {
      // Once more with the auxiliary terms weighted by zero: the gradients of the token loss alone.
      write_all(backward, true);
      const std::span<double> norm = backward.executor().at(step::norm);
      norm[1] = norm[2] = norm[3] = 0;
      backward.executor().run();
    }
    std::vector<Source> sources;
    for (size_t i = 0; i < table.size(); ++i) {
      if (!table[i].tied_to.empty()) continue;
      const program::ValueId id = backward.executor().find(table[i].name + ".grad");
      const program::Value& v = backward.program().values[static_cast<size_t>(id)];
      sources.push_back({table[i].name, v.dtype, v.shape,
                         std::span(static_cast<const std::byte*>(backward.executor().data(id)),
                                   static_cast<size_t>(program::num_bytes(v)))});
    }
    std::vector<std::byte> bytes;
    for (const NamedTensor& t : tensors_on_disk(model, table, out.type(), family::Naming::Model)) {
      if (t.correction_bias_layer >= 0) continue;
      gather(t, table, sources, bytes);
      out.add("grad." + t.spec.name, t.spec.shape, bytes.data());
    }
  }
  result.num_tensors = out.write();
  return result;
}

}  // namespace pleat::exchange
