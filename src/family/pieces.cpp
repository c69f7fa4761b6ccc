// Tensor names: which Hugging Face tensor holds which rows of which of our parameters.
#include "base/error.h"
#include "family/family.h"

namespace pleat::family {
namespace {

struct Context {
  const Family& family;
  const config::Config& config;
  const model::Parameter& parameter;
  Naming naming;
  std::string layer;  // "model.layers.3."

  Piece whole(std::string name) const {
    return {std::move(name), parameter.shape, -1, 0, parameter.shape[0], Layout::Same};
  }
  // A block of rows of a matrix (or of elements of a vector).
  Piece rows(std::string name, int64_t begin, int64_t size) const {
    std::vector<int64_t> shape = parameter.shape;
    shape[0] = size;
    return {std::move(name), shape, -1, begin, size, Layout::Same};
  }
};

std::vector<Piece> gate_and_up(const Context& c, const std::string& prefix, const std::string& suffix) {
  const int64_t f = c.parameter.shape[0] / 2;
  return {c.rows(prefix + ".gate_proj" + suffix, 0, f), c.rows(prefix + ".up_proj" + suffix, f, f)};
}

std::vector<Piece> expert_pieces(const Context& c, bool up, bool bias) {
  const Spelling& s = c.family.spelling;
  const int64_t E = c.parameter.shape[0], rows = c.parameter.shape[1];
  std::vector<Piece> out;
  if (s.fused_transposed) {
    const std::string name = c.layer + std::string(s.model_experts) + (up ? ".gate_up_proj" : ".down_proj") +
                             (bias ? "_bias" : "");
    std::vector<int64_t> shape =
        bias ? std::vector<int64_t>{E, rows} : std::vector<int64_t>{E, c.parameter.shape[2], rows};
    if (!up) return {{name, shape, -1, 0, rows, bias ? Layout::Same : Layout::Transposed}};
    const int64_t f = rows / 2;
    return {{name, shape, -1, 0, f, bias ? Layout::Even : Layout::TransposedEven},
            {name, shape, -1, f, f, bias ? Layout::Odd : Layout::TransposedOdd}};
  }
  if (bias) base::fail("family {} has no expert biases", c.family.model_type);
  if (c.naming == Naming::Model)
    return {{c.layer + std::string(s.model_experts) + (up ? ".gate_up_proj" : ".down_proj"),
             c.parameter.shape, -1, 0, rows, Layout::Same}};
  for (int64_t e = 0; e < E; ++e) {
    const std::string prefix = fmt::format("{}{}.{}.", c.layer, s.experts, e);
    const std::vector<int64_t> half = {rows / 2, c.parameter.shape[2]}, full = {rows, c.parameter.shape[2]};
    if (up) {
      out.push_back({fmt::format("{}{}.weight", prefix, s.gate), half, e, 0, rows / 2, Layout::Same});
      out.push_back({fmt::format("{}{}.weight", prefix, s.up), half, e, rows / 2, rows / 2, Layout::Same});
    } else {
      out.push_back({fmt::format("{}{}.weight", prefix, s.down), full, e, 0, rows, Layout::Same});
    }
  }
  return out;
}

std::vector<Piece> mtp_pieces(const Context& c, const std::string& part) {
  if (!c.family.spelling.mtp)
    base::fail("family {} has no layers of multi-token prediction; needed is model.num_mtp_layers = 0",
               c.family.model_type);
  if (part == "mtp.embed_norm.weight") return {c.whole(c.layer + "enorm.weight")};
  if (part == "mtp.hidden_norm.weight") return {c.whole(c.layer + "hnorm.weight")};
  if (part == "mtp.final_norm.weight") return {c.whole(c.layer + "shared_head.norm.weight")};
  // One matrix on [embedding | hidden].
  const int64_t h = c.parameter.shape[0];
  Piece piece = c.whole(c.layer + "eh_proj.weight");
  piece.shape = {h, 2 * h};
  piece.layout = Layout::Columns;
  piece.column = part == "mtp.embed_proj.weight" ? 0 : h;
  return {piece};
}

}  // namespace

std::vector<Piece> pieces_of(const Family& family, const config::Config& config, const model::Parameter& p,
                             Naming naming) {
  const auto& m = config.model;
  const Spelling& s = family.spelling;
  if (!p.tied_to.empty()) return {};
  const Context c{family, config, p, naming, p.layer >= 0 ? fmt::format("model.layers.{}.", p.layer) : ""};
  const std::string part = p.layer >= 0 ? p.name.substr(fmt::format("layers.{}.", p.layer).size()) : p.name;
  const std::string router{naming == Naming::Model ? s.model_router : s.router};
  if (part == "embedding.weight") return {c.whole("model.embed_tokens.weight")};
  if (part == "final_norm.weight") return {c.whole("model.norm.weight")};
  if (part == "head.weight") return {c.whole("lm_head.weight")};
  if (part == "attn_norm.weight") return {c.whole(c.layer + "input_layernorm.weight")};
  if (part == "mlp_norm.weight") return {c.whole(c.layer + "post_attention_layernorm.weight")};
  if (part == "attn.qkv.weight" || part == "attn.qkv.bias") {
    const std::string suffix = part.substr(std::string("attn.qkv").size());
    const int64_t q = m.num_heads * m.head_dim, kv = m.num_kv_heads * m.head_dim;
    return {c.rows(c.layer + "self_attn.q_proj" + suffix, 0, q),
            c.rows(c.layer + "self_attn.k_proj" + suffix, q, kv),
            c.rows(c.layer + "self_attn.v_proj" + suffix, q + kv, kv)};
  }
  static constexpr std::pair<std::string_view, std::string_view> kPlain[] = {
      {"attn.q_norm.weight", "self_attn.q_norm.weight"},
      {"attn.k_norm.weight", "self_attn.k_norm.weight"},
      {"attn.sinks", "self_attn.sinks"},
      {"attn.out.weight", "self_attn.o_proj.weight"},
      {"attn.out.bias", "self_attn.o_proj.bias"},
      {"attn.q_down.weight", "self_attn.q_a_proj.weight"},
      {"attn.q_down_norm.weight", "self_attn.q_a_layernorm.weight"},
      {"attn.kv_down.weight", "self_attn.kv_a_proj_with_mqa.weight"},
      {"attn.kv_norm.weight", "self_attn.kv_a_layernorm.weight"},
      {"attn.kv_up.weight", "self_attn.kv_b_proj.weight"},
      {"mlp.down.weight", "mlp.down_proj.weight"},
      {"mlp.down.bias", "mlp.down_proj.bias"},
  };
  for (const auto& [ours, theirs] : kPlain)
    if (part == ours) return {c.whole(c.layer + std::string(theirs))};
  if (part == "attn.q_up.weight")
    return {c.whole(c.layer + (m.q_lora_rank > 0 ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight"))};
  if (part == "mlp.up.weight") return gate_and_up(c, c.layer + "mlp", ".weight");
  if (part == "mlp.up.bias") return gate_and_up(c, c.layer + "mlp", ".bias");
  if (part == "router.weight") return {c.whole(c.layer + router + ".weight")};
  if (part == "router.bias") return {c.whole(c.layer + router + ".bias")};
  if (part == "experts.up.weight") return expert_pieces(c, true, false);
  if (part == "experts.down.weight") return expert_pieces(c, false, false);
  if (part == "experts.up.bias") return expert_pieces(c, true, true);
  if (part == "experts.down.bias") return expert_pieces(c, false, true);
  if (part == "shared.up.weight") return gate_and_up(c, c.layer + std::string(s.shared), ".weight");
  if (part == "shared.down.weight") return {c.whole(c.layer + std::string(s.shared) + ".down_proj.weight")};
  if (part == "shared.gate.weight") {
    Piece piece = c.whole(c.layer + std::string(s.shared_gate) + ".weight");
    piece.shape = {1, p.shape[0]};  // a linear layer with one output there, a vector here
    return {piece};
  }
  if (part.starts_with("mtp.")) return mtp_pieces(c, part);
  base::fail_with(base::ExitCode::Internal, "family {} has no tensor for parameter '{}'", family.model_type,
                  p.name);
}

std::vector<SharedCopy> shared_copies(const config::Config& config) {
  std::vector<SharedCopy> out;
  for (int64_t layer = config.model.num_layers; layer < config::num_all_layers(config); ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    out.push_back({at + "embed_tokens.weight", "model.embed_tokens.weight"});
    out.push_back({at + "shared_head.head.weight",
                   config.model.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"});
  }
  return out;
}

std::string correction_bias_name(const config::Config& config, int layer) {
  for (const std::string& type : config.moe.load_balancing)
    if (type == "bias" && config::is_moe_layer(config, layer))
      return fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer);
  return "";
}

namespace {

// Visits every element of a piece as (index in the tensor, index in the parameter).
template <class F>
void for_each_element(const Piece& piece, const model::Parameter& p, F f) {
  const bool experts = p.parameter_class == model::ParameterClass::Experts;
  const int64_t num_blocks = experts ? (piece.expert >= 0 ? 1 : p.shape[0]) : 1;
  const size_t first = experts ? 1 : 0;
  const int64_t rows = p.shape[first];
  int64_t columns = 1;
  for (size_t d = first + 1; d < p.shape.size(); ++d) columns *= p.shape[d];
  int64_t tensor_size = 1;
  for (int64_t d : piece.shape) tensor_size *= d;
  const int64_t per_block = tensor_size / num_blocks;
  const int64_t tensor_columns = per_block / std::max<int64_t>(columns, 1);  // of a transposed tensor
  for (int64_t b = 0; b < num_blocks; ++b) {
    const int64_t block = ((piece.expert >= 0 ? piece.expert : b) * rows + piece.begin) * columns;
    for (int64_t i = 0; i < piece.size; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        int64_t at = 0;
        switch (piece.layout) {
          case Layout::Same:
            at = i * columns + j;
            break;
          case Layout::Transposed:
            at = j * tensor_columns + i;
            break;
          case Layout::TransposedEven:
            at = j * tensor_columns + 2 * i;
            break;
          case Layout::TransposedOdd:
            at = j * tensor_columns + 2 * i + 1;
            break;
          case Layout::Columns:
            at = i * piece.shape[1] + piece.column + j;
            break;
          case Layout::Even:
            at = 2 * i;
            break;
          case Layout::Odd:
            at = 2 * i + 1;
            break;
        }
        f(b * per_block + at, block + i * columns + j);
      }
  }
}

}  // namespace

template <class T>
void piece_into_parameter(const Piece& piece, const model::Parameter& parameter, const T* tensor, T* out) {
  for_each_element(piece, parameter, [&](int64_t from, int64_t to) { out[to] = tensor[from]; });
}

template <class T>
void parameter_into_piece(const Piece& piece, const model::Parameter& parameter, const T* data, T* tensor) {
  for_each_element(piece, parameter, [&](int64_t to, int64_t from) { tensor[to] = data[from]; });
}

template void piece_into_parameter(const Piece&, const model::Parameter&, const float*, float*);
template void piece_into_parameter(const Piece&, const model::Parameter&, const double*, double*);
template void parameter_into_piece(const Piece&, const model::Parameter&, const float*, float*);
template void parameter_into_piece(const Piece&, const model::Parameter&, const double*, double*);

}  // namespace pleat::family
