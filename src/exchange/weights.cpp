#include "exchange/weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "exchange/parameter_stream.h"
#include "model/state.h"
#include "safetensors/convert.h"

namespace pleat::exchange {
namespace {

using family::Naming;
using family::Piece;

std::string shape_of(const std::vector<int64_t>& shape) { return safetensors::shape_text(shape); }

std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

// Of a layer of multi-token prediction that the folder's config.json names and this model leaves out.
bool is_left_out_mtp(const std::string& name, const family::FamilyConfig& m) {
  for (int64_t layer = config::num_all_layers(m.config);
       layer < m.config.model.num_layers + m.num_mtp_declared; ++layer)
    if (name.starts_with(layer_prefix(layer))) return true;
  return false;
}

bool same_numbers(const safetensors::ModelFolder& folder, const std::string& a, const std::string& b) {
  const safetensors::TensorInfo &one = folder.at(a), &other = folder.at(b);
  if (one.type != other.type || one.shape != other.shape) return false;
  std::vector<std::byte> left, right;
  const int64_t piece_bytes = std::max(folder.piece_bytes(a), folder.piece_bytes(b));
  for (int64_t at = 0; at < one.num_bytes(); at += piece_bytes) {
    const auto size = static_cast<size_t>(std::min(piece_bytes, one.num_bytes() - at));
    left.resize(size);
    right.resize(size);
    folder.read(a, at, left);
    folder.read(b, at, right);
    if (left != right) return false;
  }
  return true;
}

const checkpoint::Target* find(const std::vector<checkpoint::Target>& targets, const std::string& name) {
  for (const checkpoint::Target& t : targets)
    if (t.name == name) return &t;
  return nullptr;
}

}  // namespace

LoadPlan plan_load(const safetensors::ModelFolder& folder, const family::FamilyConfig& model,
                   const std::vector<model::Parameter>& table) {
  LoadPlan plan;
  std::vector<std::string> faults;
  std::set<std::string> used;
  for (const model::Parameter& p : table) {
    if (!p.tied_to.empty()) continue;
    std::vector<Piece> pieces = family::pieces_of(*model.family, model.config, p, Naming::Disk);
    const auto fused = family::pieces_of(*model.family, model.config, p, Naming::Model);
    if (!folder.find(pieces.front().name) && folder.find(fused.front().name)) pieces = fused;
    for (const Piece& piece : pieces) {
      const safetensors::TensorInfo* info = folder.find(piece.name);
      if (!info)
        faults.push_back(fmt::format("'{}' is missing (part of {})", piece.name, p.name));
      else if (info->shape != piece.shape)
        faults.push_back(
            fmt::format("'{}' is {}, needed {}", piece.name, shape_of(info->shape), shape_of(piece.shape)));
      else if (!safetensors::is_convertible(info->type))
        faults.push_back(
            fmt::format("'{}' has element type {}, needed BF16, F16, F32 or F64, or codes that "
                        "quantization_config of config.json describes",
                        piece.name, safetensors::name_of(info->type)));
      used.insert(piece.name);
    }
    plan.pieces.emplace_back(&p, std::move(pieces));
  }
  for (const family::SharedCopy& shared : family::shared_copies(model.config)) {
    if (!folder.find(shared.copy)) continue;
    used.insert(shared.copy);
    if (folder.find(shared.original) && !same_numbers(folder, shared.copy, shared.original))
      faults.push_back(
          fmt::format("'{}' is not '{}', which multi-token prediction shares", shared.copy, shared.original));
  }
  for (int layer = 0; layer < config::num_all_layers(model.config); ++layer)
    if (const std::string name = family::correction_bias_name(model.config, layer); !name.empty()) {
      if (!folder.find(name))
        faults.push_back(fmt::format("'{}' is missing", name));
      else if (folder.at(name).num_elements() != model.config.moe.num_experts)
        faults.push_back(fmt::format("'{}' has {} elements, needed {}", name, folder.at(name).num_elements(),
                                     model.config.moe.num_experts));
      used.insert(name);
    }
  for (const std::string_view name : folder.names()) {
    const std::string text(name);
    if (used.count(text)) continue;
    // Buffers some versions of transformers stored; a tied head may be stored all the same.
    if (text.ends_with("rotary_emb.inv_freq") ||
        (text == "lm_head.weight" && model.config.model.tie_embeddings))
      plan.unused.push_back(text);
    else if (is_left_out_mtp(text, model))
      ++plan.num_unused_mtp;
    else
      faults.push_back(fmt::format("'{}' has no place in this model", text));
  }
  if (!faults.empty()) {
    const size_t shown = std::min<size_t>(faults.size(), 20);
    base::fail("{} does not fit its config.json, {} tensors:\n  {}{}", folder.path(), faults.size(),
               fmt::join(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(shown), "\n  "),
               faults.size() > shown ? "\n  ..." : "");
  }
  return plan;
}

LoadReport report_of(const LoadPlan& plan) {
  LoadReport report{0, plan.unused, plan.num_unused_mtp};
  std::set<std::string> names;  // some families keep two of our pieces in one tensor
  for (const auto& [p, pieces] : plan.pieces)
    for (const Piece& piece : pieces) names.insert(piece.name);
  report.num_tensors = static_cast<int64_t>(names.size());
  return report;
}

LoadReport load_weights(const safetensors::ModelFolder& folder, const family::FamilyConfig& model,
                        const std::vector<model::Parameter>& table,
                        const std::vector<checkpoint::Target>& targets) {
  const LoadPlan plan = plan_load(folder, model, table);
  LoadReport report = report_of(plan);
  for (const checkpoint::Target& t : targets) t.bytes.zero();
  for (const auto& [p, pieces] : plan.pieces) {
    const checkpoint::Target* target = find(targets, p->name);
    PLEAT_CHECK(target, "no memory for parameter {}", p->name);
    const auto fill = [&folder, &plan_pieces = pieces, p = p](const checkpoint::Target& t) {
      stream_parameter(folder, *p, plan_pieces, t.dtype, 0,
                       [&t, at = int64_t{0}](std::span<const std::byte> bytes) mutable {
                         t.bytes.write(at, bytes);
                         at += static_cast<int64_t>(bytes.size());
                       });
    };
    fill(*target);
    if (const checkpoint::Target* rest = find(targets, p->name + model::kRest)) fill(*rest);
  }
  for (int layer = 0; layer < config::num_all_layers(model.config); ++layer) {
    const std::string name = family::correction_bias_name(model.config, layer);
    const checkpoint::Target* target = find(targets, fmt::format("layers.{}.router.expert_bias", layer));
    if (name.empty() || !target) continue;
    stream_correction_bias(folder, name, 0,
                           [&](std::span<const std::byte> bytes) { target->bytes.write(0, bytes); });
    ++report.num_tensors;
  }
  return report;
}

bool has_mtp_tensors(const safetensors::ModelFolder& folder, const config::Config& config) {
  for (const std::string_view name : folder.names())
    if (name.starts_with(layer_prefix(config.model.num_layers))) return true;
  return false;
}

std::vector<NamedTensor> tensors_on_disk(const family::FamilyConfig& model,
                                         const std::vector<model::Parameter>& table,
                                         safetensors::ElementType type, Naming naming) {
  std::vector<NamedTensor> out;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < table.size(); ++i)
    for (Piece& piece : family::pieces_of(*model.family, model.config, table[i], naming)) {
      const auto [at, fresh] = index.emplace(piece.name, out.size());
      if (fresh) out.push_back({{piece.name, type, piece.shape}, {}, -1});
      out[at->second].parts.emplace_back(i, std::move(piece));
    }
  if (naming == Naming::Disk)
    for (const family::SharedCopy& shared : family::shared_copies(model.config)) {
      NamedTensor copy = out[index.at(shared.original)];
      copy.spec.name = shared.copy;
      out.push_back(std::move(copy));
    }
  for (int layer = 0; layer < config::num_all_layers(model.config); ++layer)
    if (const std::string name = family::correction_bias_name(model.config, layer); !name.empty())
      out.push_back({{name, safetensors::ElementType::F32, {model.config.moe.num_experts}},
                     {},
                     layer});  // never narrowed
  return out;
}

void gather(const NamedTensor& tensor, const std::vector<model::Parameter>& table,
            const std::vector<Source>& sources, std::vector<std::byte>& out) {
  const auto source = [&](const std::string& name) -> const Source& {
    for (const Source& s : sources)
      if (s.name == name) return s;
    base::fail_with(base::ExitCode::Internal, "no source for '{}'", name);
  };
  out.clear();
  const ParameterStore store{[&](const std::string& name) { return source(name).dtype; },
                             [&](const std::string& name, int64_t begin, std::span<std::byte> bytes) {
                               source(name).bytes.read(begin, bytes);
                             }};
  stream_tensor(tensor, table, store,
                [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
}

}  // namespace pleat::exchange
