#include "exchange/upcycle.h"

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "exchange/dense_source.h"
#include "exchange/free_space.h"
#include "exchange/upcycle_config.h"
#include "model/parameters.h"
#include "safetensors/convert.h"

namespace pleat::exchange {
namespace {

using safetensors::ElementType;

// Rounds each product once; in place, a few at a time.
void multiply(double factor, ElementType type, const std::string& name, std::span<std::byte> bytes) {
  if (factor == 1) return;
  const size_t size = static_cast<size_t>(safetensors::size_of(type));
  std::array<double, 4096> numbers;
  for (size_t at = 0; at < bytes.size(); at += numbers.size() * size) {
    const std::span<std::byte> part = bytes.subspan(at, std::min(numbers.size() * size, bytes.size() - at));
    const std::span<double> some(numbers.data(), part.size() / size);
    safetensors::decode(type, part, some);
    for (double& x : some) x *= factor;
    safetensors::encode(type, std::span<const double>(some), part);
    safetensors::decode(type, part, some);
    for (const double x : some)
      if (!std::isfinite(x))
        base::fail("a weight of '{}' times {:.4g} is not finite as {}", name, factor,
                   safetensors::name_of(type));
  }
}

// Rows [g n/G, (g+1) n/G) of an [n, columns] matrix, or the same of its columns.
struct Shard {
  int64_t rows, columns, element_bytes;
  bool by_column;

  void take(std::span<const std::byte> all, int64_t granularity, int64_t g,
            std::vector<std::byte>& out) const {
    const int64_t blocks = by_column ? rows : 1;
    const int64_t block_bytes = (by_column ? columns : rows * columns) * element_bytes;
    const int64_t share = block_bytes / granularity;
    out.resize(static_cast<size_t>(blocks * share));
    for (int64_t b = 0; b < blocks; ++b)
      std::memcpy(out.data() + b * share, all.data() + b * block_bytes + g * share,
                  static_cast<size_t>(share));
  }
};

class Upcycle {
 public:
  Upcycle(const UpcycleOptions& o, DenseSource& dense)
      : o_(o), dense_(dense), h_(dense.model().config.model.hidden_size) {
    const config::ModelConfig& m = dense.model().config.model;
    upcycled_family(dense.model());  // says first what is no dense model at all
    result_.router_init_std = o.router_init_std < 0 ? m.init_std : o.router_init_std;
    result_.start = upcycle_start(o, m.ffn_hidden_size, result_.router_init_std);
    description_ = upcycled_config(dense.model(), dense.config_json(), o);
    table_ = model::make_parameters(description_.model.config);
    for (NamedTensor& t : tensors_on_disk(description_.model, table_, ElementType::F32, family::Naming::Disk))
      plan(std::move(t));
  }

  UpcycleResult write() {
    std::vector<safetensors::TensorSpec> specs;
    for (const NamedTensor& t : tensors_) {
      specs.push_back(t.spec);
      progress_.total += safetensors::num_bytes_of(t.spec, o_.model_folder);
    }
    std::filesystem::create_directories(o_.model_folder);
    require_space(o_.model_folder, progress_.total, "the model");
    safetensors::FolderWriter writer(o_.model_folder, std::move(specs), o_.max_shard_bytes);
    // Experts of one dense matrix lie together, so that it is read once.
    std::vector<std::byte> whole, share;
    for (const auto& [dense_name, uses] : experts_) {
      dense_.read(dense_name, whole);
      for (int64_t g = 0; g < o_.granularity; ++g) {
        bool made = false;
        for (const Use& use : uses) {
          if (use.shard_idx != g) continue;
          const safetensors::TensorSpec& spec = tensors_[use.tensor].spec;
          if (!made) {
            use.cut.take(whole, o_.granularity, g, share);
            multiply(use.factor, spec.type, dense_name, share);
            made = true;
          }
          append(writer, spec, share);
        }
      }
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (kinds_[i] == Kind::Expert) continue;
      if (kinds_[i] == Kind::Router)
        make_router(tensors_[i], whole);
      else
        dense_.read(tensors_[i].spec.name, whole);
      append(writer, tensors_[i].spec, whole);
    }
    writer.finish();
    for (const SmallFile& file : dense_.files())
      if (file.name != "config.json") write_small_file(o_.model_folder, file);
    write_small_file(o_.model_folder, {"config.json", description_.json});

    const model::ParameterCount count = model::count_parameters(description_.model.config, table_);
    const config::Config& dense = dense_.model().config;
    result_.model_type = description_.model.family->model_type;
    result_.num_tensors = static_cast<int64_t>(tensors_.size());
    result_.num_shards = writer.num_shards();
    result_.total_parameters = count.total;
    result_.active_parameters = count.active;
    result_.dense_parameters = model::count_parameters(dense, model::make_parameters(dense)).total;
    result_.notes = dense_.notes();
    add_notes();
    return result_;
  }

 private:
  enum class Kind : uint8_t { Copied, Router, Expert };
  struct Use {
    size_t tensor;
    int64_t shard_idx;
    double factor;
    Shard cut;
  };

  void plan(NamedTensor t) {
    const auto& [parameter_idx, piece] = t.parts.front();
    const model::Parameter& p = table_[parameter_idx];
    const auto ends = [&](const char* part) { return p.name.ends_with(part); };
    const std::string mlp = fmt::format("model.layers.{}.mlp.", p.layer);
    Kind kind = Kind::Copied;
    if (ends(".router.weight")) {
      kind = Kind::Router;
      t.spec.type = dense_.type_of(mlp + "gate_proj.weight");
    } else if (ends(".experts.up.weight") || ends(".experts.down.weight")) {
      kind = Kind::Expert;
      const bool is_down = ends(".experts.down.weight"), is_gate = !is_down && piece.begin == 0;
      const std::string name = mlp + (is_down ? "down_proj" : is_gate ? "gate_proj" : "up_proj") + ".weight";
      t.spec.type = dense_.type_of(name);
      const int64_t f = dense_.model().config.model.ffn_hidden_size;
      const Shard cut{is_down ? h_ : f, is_down ? f : h_, safetensors::size_of(t.spec.type), is_down};
      const UpcycleStart& s = result_.start;
      experts_[name].push_back({tensors_.size(), piece.expert % o_.granularity,
                                is_down   ? s.down
                                : is_gate ? s.gate
                                          : s.up,
                                cut});
    } else {
      t.spec.type = dense_.type_of(t.spec.name);
    }
    tensors_.push_back(std::move(t));
    kinds_.push_back(kind);
  }

  void make_router(const NamedTensor& t, std::vector<std::byte>& out) const {
    const int64_t copies = o_.num_experts / o_.granularity;
    const model::Parameter& p = table_[t.parts.front().first];
    const base::RandomStream stream(static_cast<uint64_t>(o_.seed), base::RandomUse::Init, 0,
                                    static_cast<uint32_t>(p.layer));
    std::vector<double> row(static_cast<size_t>(h_));
    const size_t row_bytes = row.size() * static_cast<size_t>(safetensors::size_of(t.spec.type));
    out.resize(row_bytes * static_cast<size_t>(o_.num_experts));
    for (int64_t c = 0; c < copies; ++c) {
      for (int64_t i = 0; i < h_; ++i)
        row[static_cast<size_t>(i)] =
            result_.router_init_std * stream.normal(static_cast<uint64_t>(c * h_ + i));
      for (int64_t g = 0; g < o_.granularity; ++g)
        safetensors::encode(
            t.spec.type, std::span<const double>(row),
            std::span(out).subspan(static_cast<size_t>(c * o_.granularity + g) * row_bytes, row_bytes));
    }
  }

  void append(safetensors::FolderWriter& writer, const safetensors::TensorSpec& spec,
              std::span<const std::byte> bytes) {
    writer.append(spec.name, bytes);
    result_.num_bytes += static_cast<int64_t>(bytes.size());
    progress_.done = result_.num_bytes;
    o_.watch.tell(progress_);
  }

  void add_notes() {
    if (o_.normalized && o_.top_k == 1)
      result_.notes.push_back(
          "with one expert per token its weight is always 1: the loss gives the router no gradient");
    if (result_.router_init_std == 0 && o_.granularity > 1 && o_.top_k < o_.num_experts)
      result_.notes.push_back(
          "a router of zeros leaves the choice to ties: whole copies are chosen where the lower expert wins, "
          "as here");
  }

  const UpcycleOptions& o_;
  DenseSource& dense_;
  const int64_t h_;
  UpcycleResult result_;
  checkpoint::StreamProgress progress_;
  Description description_;
  std::vector<model::Parameter> table_;
  std::vector<NamedTensor> tensors_;
  std::vector<Kind> kinds_;                          // of tensors_
  std::map<std::string, std::vector<Use>> experts_;  // by dense tensor
};

}  // namespace

UpcycleResult upcycle(const UpcycleOptions& o) {
  require_new_folder(o.model_folder, "an upcycled model");
  const std::unique_ptr<DenseSource> dense = DenseSource::open(o.dense);
  return Upcycle(o, *dense).write();
}

}  // namespace pleat::exchange
