#include "schedule/pass/low_precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "model/parameters.h"
#include "program/builder.h"
#include "program/code_rows.h"
#include "program/edit.h"
#include "program/signature.h"
#include "program/step_values.h"
#include "tensor/recipe.h"

namespace pleat::schedule {
namespace {

using namespace program;
using tensor::Recipe;
using tensor::RecipeId;
namespace signature = program::signature;

// What a product becomes, and what makes its codes.
struct Form {
  Op scaled;
  CodeModule module;
  Op quantize, turn, weight;
};

std::optional<Form> form_of(Op op) {
  const auto attention = [](Op scaled, CodeModule module) {
    return Form{scaled, module, Op::attn_quantize, Op::attn_turn, Op::attn_weight_codes};
  };
  const auto mlp = [](Op scaled) {
    return Form{scaled, CodeModule::Mlp, Op::mlp_quantize, Op::mlp_turn, Op::mlp_weight_codes};
  };
  const auto experts = [](Op scaled) {
    return Form{scaled, CodeModule::Experts, Op::expert_quantize, Op::expert_turn, Op::expert_weight_codes};
  };
  const auto shared = [](Op scaled) {
    return Form{scaled, CodeModule::SharedExperts, Op::shared_quantize, Op::shared_turn,
                Op::shared_weight_codes};
  };
  switch (op) {
    case Op::qkv:
      return attention(Op::qkv_scaled, CodeModule::Attention);
    case Op::attn_out:
      return attention(Op::attn_out_scaled, CodeModule::Attention);
    case Op::q_down:
      return attention(Op::q_down_scaled, CodeModule::Latent);
    case Op::q_up:
      return attention(Op::q_up_scaled, CodeModule::Latent);
    case Op::kv_down:
      return attention(Op::kv_down_scaled, CodeModule::Latent);
    case Op::kv_up:
      return attention(Op::kv_up_scaled, CodeModule::Latent);
    case Op::mlp_up:
      return mlp(Op::mlp_up_scaled);
    case Op::mlp_down:
      return mlp(Op::mlp_down_scaled);
    case Op::expert_up:
      return experts(Op::expert_up_scaled);
    case Op::expert_down:
      return experts(Op::expert_down_scaled);
    case Op::shared_up:
      return shared(Op::shared_up_scaled);
    case Op::shared_down:
      return shared(Op::shared_down_scaled);
    default:
      return {};
  }
}

RecipeId recipe_named(std::string_view name) {
  if (name == "fp8") return RecipeId::Fp8;
  if (name == "mxfp8") return RecipeId::Mxfp8;
  PLEAT_CHECK(name == "nvfp4", "recipe {}", name);
  return RecipeId::Nvfp4;
}

// A value as it is after so many writes.
using State = std::pair<ValueId, int>;
struct Codes {
  ValueId codes = kNoValue, scale = kNoValue;
};

class Coder {
 public:
  Coder(Program program, const config::Config& config)
      : config_(config),
        id_(recipe_named(config.precision.recipe)),
        recipe_(tensor::recipe_of(id_)),
        parameters_(model::make_parameters(config)),
        edit_(std::move(program)) {
    for (const Value& v : edit_.program().values) names_.insert(v.name);
    const auto& values = edit_.program().values;
    const auto coords =
        std::find_if(values.begin(), values.end(), [](const Value& v) { return v.name == "coords"; });
    if (coords != values.end()) coords_ = static_cast<ValueId>(coords - values.begin());
  }

  Program run() {
    count_writes();
    declare_counts();
    for (StageId s = 0; s < edit_.num_stages(); ++s)
      if (const auto form = wanted(edit_[s])) needs(s);
    for (StageId s = 0; s < edit_.num_stages(); ++s)
      if (const auto form = wanted(edit_[s])) rewrite(s, *form);
    return without_unused_values(edit_.apply(), [&](const Value& v) { return replaced_.contains(v.name); });
  }

 private:
  std::optional<Form> wanted(const Stage& s) const {
    if (s.layer < 0 || !config::has_low_precision(config_, s.layer)) return {};
    const auto form = form_of(s.op);
    const auto& asked = config_.precision.modules;
    if (!form ||
        (!asked.empty() && std::find(asked.begin(), asked.end(), name_of(form->module)) == asked.end()))
      return {};
    return form;
  }

  // writes_[i]: of the i-th stage, how often the root of each of its uses was written before.
  void count_writes() {
    std::map<ValueId, int> so_far;
    writes_.resize(static_cast<size_t>(edit_.num_stages()));
    for (StageId s = 0; s < edit_.num_stages(); ++s) {
      const bool codes = wanted(edit_[s]).has_value();
      for (const Use& use : edit_[s].uses) {
        writes_[static_cast<size_t>(s)].push_back(use.value == kNoValue ? 0 : so_far[root(use.value)]);
        if (use.value != kNoValue && use.access == Access::Read && !codes) read_wide_.insert(root(use.value));
      }
      for (const Use& use : edit_[s].uses)
        if (use.value != kNoValue && use.access != Access::Read)
          written_by_[{root(use.value), ++so_far[root(use.value)]}] = s;
    }
  }
  ValueId root(ValueId v) const { return root_of(edit_.program(), v); }
  State state(StageId s, Use use) const {
    const std::vector<Use>& uses = edit_[s].uses;
    const auto at = std::find(uses.begin(), uses.end(), use) - uses.begin();
    return {use.value, writes_[static_cast<size_t>(s)][static_cast<size_t>(at)]};
  }
  // The stage that wrote what the stage reads there; end(): none, it was there before the step.
  StageId maker(StageId s, Use use) const {
    const auto [value, times] = state(s, use);
    const auto known = written_by_.find({root(value), times});
    return known == written_by_.end() ? edit_.end() : known->second;
  }

  // How codes fared in the whole step, over all ranks. Every rank has all rows, whatever layers it holds.
  void declare_counts() {
    const auto result = [&](std::string_view name, tensor::Dtype dtype, std::vector<int64_t> shape) {
      Value v;
      v.name = name, v.dtype = dtype, v.shape = std::move(shape);
      v.life = Life::Result, v.owner = Owner::Results;
      return edit_.add(std::move(v));
    };
    counts_ = result(step::code_counts.what, tensor::Dtype::I64, {kNumCodeRows, kNumCodeCounts});
    largest_ = result(step::code_largest.what, tensor::Dtype::F64, {kNumCodeRows});
    int part = 0;
    for (const ValueId v : {counts_, largest_}) {
      Stage zero;
      zero.op = Op::code_counts_zero, zero.part = part, zero.uses = {w(v)};
      edit_.insert_before(0, std::move(zero));
      if (coords_ != kNoValue) {
        Stage reduce;
        reduce.op = Op::code_counts_reduce, reduce.phase = Phase::Update, reduce.part = part;
        reduce.group = Group::World, reduce.uses = {u(v)};
        if (v == largest_) reduce.attrs = edit_.attrs({{"max", 1}});
        edit_.insert_before(edit_.end(), std::move(reduce));
      }
      ++part;
    }
  }
  // Where a stage counts.
  struct Counters {
    Use counts = none(), largest = none();
  };
  Counters counters(CodeModule module, CodeSide side) {
    const int row = code_row(module, side);
    const auto [at, is_new] = counters_.try_emplace(row);
    if (is_new) {
      const auto view = [&](ValueId of, std::vector<int64_t> shape) {
        Value v = edit_.value(of);
        v.name += fmt::format("[{}.{}]", name_of(module), name_of(side));
        v.shape = std::move(shape), v.view_of = of;
        v.offset = row * num_bytes(v);
        return u(edit_.add(std::move(v)));
      };
      at->second = {view(counts_, {kNumCodeCounts}), view(largest_, {1})};
    }
    return at->second;
  }
  // Ranks of this group code the same numbers as what the stage reads there, and one of them counts.
  Group same_on(StageId s, const Form& form, Use use, bool is_gradient) const {
    const StageId by = maker(s, use);
    if (by < edit_.end() && kernel_of(edit_[by].op) == KernelKind::all_gather) return edit_[by].group;
    const bool whole_rows = form.module == CodeModule::Experts &&
                            form.scaled == (is_gradient ? Op::expert_down_scaled : Op::expert_up_scaled);
    return whole_rows ? Group::ExpertTensor : Group::None;
  }
  Group same_on(ValueId weight) const {
    const std::string& name = edit_.program().values[static_cast<size_t>(root(weight))].name;
    const int at = model::find_parameter(parameters_, name);
    PLEAT_CHECK(at >= 0, "{} is no parameter", name);
    const auto& partial = parameters_[static_cast<size_t>(at)].gradient_partial;
    const auto over = [&](model::Axis axis) {
      return std::find(partial.begin(), partial.end(), axis) != partial.end();
    };
    return over(model::Axis::ExpertData) ? Group::ExpertData
           : over(model::Axis::Tensor)   ? Group::TensorDataContext
                                         : Group::DataContext;
  }

  // The two sides of a product that are activations or their gradients, and its experts' offsets.
  struct Sides {
    std::vector<Use> by_rows, by_columns;
    Use offsets;
  };
  template <class Forward, class BackwardInput, class BackwardWeight>
  static Sides sides_as(const Stage& s) {
    const auto offsets = [](const auto& a) {
      if constexpr (requires { a.offsets; })
        return a.offsets;
      else
        return none();
    };
    if (s.phase == Phase::Forward) {
      const Forward a(s.uses);
      return {{a.x}, {}, offsets(a)};
    }
    if (s.phase == Phase::BackwardInput) {
      const BackwardInput a(s.uses);
      return {{a.dy}, {}, offsets(a)};
    }
    const BackwardWeight a(s.uses);
    return {{}, {a.dy, a.x}, offsets(a)};
  }
  static bool is_grouped(const Stage& s) { return kernel_of(s.op) == KernelKind::grouped_linear; }
  static Sides sides(const Stage& s) {
    using namespace signature;
    return is_grouped(s)
               ? sides_as<grouped_linear::Forward<Use>, grouped_linear::BackwardInput<Use>,
                          grouped_linear::BackwardWeight<Use>>(s)
               : sides_as<linear::Forward<Use>, linear::BackwardInput<Use>, linear::BackwardWeight<Use>>(s);
  }

  void needs(StageId s) {
    const Sides of = sides(edit_[s]);
    for (const Use& use : of.by_rows) needed_rows_.insert(state(s, use));
    for (const Use& use : of.by_columns) needed_columns_.insert(state(s, use));
  }

  // A stage right ahead of a product, at its place.
  Stage ahead_of(StageId s, Op op, Phase phase) {
    const Stage& product = edit_[s];
    Stage out;
    out.op = op, out.phase = phase;
    out.lane = product.lane, out.model = product.model, out.chunk = product.chunk, out.layer = product.layer;
    out.microbatch = product.microbatch;
    // What is coded for a backward, or for what is computed again, belongs to no forward.
    out.replay = phase == Phase::Forward && (product.phase != Phase::Forward || product.replay > 0) ? 1 : 0;
    out.part = parts_[{op, phase, out.microbatch, out.layer, out.replay, out.chunk}]++;
    return out;
  }
  int32_t attrs(AttrSet more = {}) {
    more.push_back({"recipe", static_cast<double>(id_)});
    return edit_.attrs(std::move(more));
  }

  Codes paired(Codes c) {
    edit_.value(c.scale).scale_of = c.codes;
    return c;
  }
  ValueId make(ValueId base, std::string_view suffix, tensor::Dtype dtype, std::vector<int64_t> shape) {
    Value v = edit_.value(base);
    std::string name = v.name + std::string(suffix);
    for (int n = 2; !names_.insert(name).second; ++n) name = fmt::format("{}{}{}", v.name, suffix, n);
    v.name = std::move(name);
    v.dtype = dtype, v.shape = std::move(shape);
    v.space = Space::Device, v.view_of = kNoValue, v.offset = 0;
    if (v.life == Life::Persistent) v.owner = Owner::Weights;
    v.life = Life::Step;
    v.expected_rows = v.maximum_rows = 0;
    return edit_.add(std::move(v));
  }
  // The same, with a number of rows that follows from that of `base`.
  template <class RowsOf>
  ValueId routed(ValueId base, std::string_view suffix, tensor::Dtype dtype, int64_t width,
                 const RowsOf& rows_of) {
    const Value from = edit_.value(base);
    const ValueId out = make(base, suffix, dtype, {rows_of(from.shape[0], false), width});
    if (from.expected_rows > 0) edit_.value(out).expected_rows = rows_of(from.expected_rows, true);
    if (from.maximum_rows > 0) edit_.value(out).maximum_rows = rows_of(from.maximum_rows, false);
    return out;
  }
  Codes row_codes(ValueId of) {
    const int64_t n = edit_.value(of).shape[1];
    const auto same = [](int64_t rows, bool) { return rows; };
    const ValueId codes = routed(of, ".codes", recipe_.codes, base::ceil_div(n, recipe_.per_byte), same);
    return paired({codes, routed(of, ".codes_scale", recipe_.scale, base::ceil_div(n, recipe_.block), same)});
  }
  Codes column_codes(ValueId of, Use offsets) {
    const int64_t n = edit_.value(of).shape[1],
                  experts = offsets.value == kNoValue ? 0 : edit_.value(offsets.value).shape[0] - 1;
    const auto room = [&](int64_t rows, bool expected) {
      // An expert leaves half of a block free, on average.
      return expected ? base::round_up(rows + experts * recipe_.align / 2, recipe_.align)
                      : tensor::column_rows(recipe_, rows, experts);
    };
    const ValueId codes = routed(of, ".columns", recipe_.codes, n, [&](int64_t rows, bool expected) {
      return room(rows, expected) / recipe_.per_byte;
    });
    return paired({codes, routed(of, ".columns_scale", recipe_.scale, n, [&](int64_t rows, bool expected) {
                     return room(rows, expected) / recipe_.block;
                   })});
  }

  // What counts: nothing that is computed again. `group`: whose ranks count once.
  Counters counting(const Stage& stage, CodeModule module, CodeSide side) {
    return stage.replay > 0 ? Counters{} : counters(module, side);
  }
  Use coords_for(Group group, const Counters& c, AttrSet& attrs) const {
    if (coords_ == kNoValue || group == Group::None || c.counts.value == kNoValue) return none();
    attrs.push_back({"group", static_cast<double>(group)});
    return r(coords_);
  }

  void insert_quantize(StageId s, const Form& form, Use use, Use offsets, Use token_row, const Codes& rows,
                       const Codes& columns, bool is_gradient) {
    Stage stage = ahead_of(s, form.quantize, is_gradient ? Phase::BackwardInput : Phase::Forward);
    const auto written = [](ValueId v) { return v == kNoValue ? none() : w(v); };
    const Counters c =
        counting(stage, form.module, is_gradient ? CodeSide::Gradients : CodeSide::Activations);
    AttrSet more;
    const Use coords = coords_for(same_on(s, form, use, is_gradient), c, more);
    stage.uses = {r(use.value),
                  r(offsets.value),
                  token_row,
                  coords,
                  written(rows.codes),
                  written(rows.scale),
                  written(columns.codes),
                  written(columns.scale),
                  c.counts,
                  c.largest};
    stage.attrs = attrs(std::move(more));
    edit_.insert_before(s, std::move(stage));
  }
  // Rows that a stage of this rank copies from tokens, for nobody but products.
  bool copies_tokens(StageId by, Use rows) const {
    if (by == edit_.end() || !recipe_.turns || read_wide_.contains(root(rows.value))) return false;
    const Stage& stage = edit_[by];
    Use tokens = none();
    if (kernel_of(stage.op) == KernelKind::permute && stage.phase == Phase::Forward)
      tokens = signature::permute::Forward<Use>(stage.uses).x;
    else if (kernel_of(stage.op) == KernelKind::combine && stage.phase == Phase::BackwardInput)
      tokens = signature::combine::BackwardInput<Use>(stage.uses).dy;
    if (tokens.value == kNoValue) return false;
    // Most tokens of other ranks go to no expert of this one.
    const StageId from = maker(by, tokens);
    return from == edit_.end() || kernel_of(edit_[from].op) != KernelKind::all_gather;
  }
  // Codes of tokens, made once, and copied to rows instead of the numbers.
  void quantize_tokens(StageId by, const Form& form, State rows, bool is_gradient) {
    const Codes of_rows = rows_[rows] = row_codes(rows.first);
    Stage copy = edit_[by];
    Use tokens = none(), token_row = none();
    Codes of_tokens;
    if (!is_gradient) {
      const signature::permute::Forward<Use> a(copy.uses);
      tokens = a.x, token_row = a.token_row, of_tokens = row_codes(tokens.value);
      copy.op = Op::permute_codes;
      copy.uses = {r(of_tokens.codes), r(of_tokens.scale), a.probs,          a.offsets,  a.row_token,
                   a.row_slot,         w(of_rows.codes),   w(of_rows.scale), a.row_probs};
    } else {
      const signature::combine::BackwardInput<Use> a(copy.uses);
      tokens = a.dy, token_row = a.token_row, of_tokens = row_codes(tokens.value);
      copy.op = Op::combine_codes;
      copy.uses = {r(of_tokens.codes), r(of_tokens.scale), a.row_token,
                   a.offsets,          w(of_rows.codes),   w(of_rows.scale)};
    }
    copy.attrs = attrs();
    insert_quantize(by, form, tokens, none(), token_row, of_tokens, {}, is_gradient);
    replaced_.insert(edit_.value(rows.first).name);
    edit_[by] = std::move(copy);
  }

  void quantize(StageId s, const Form& form, Use use, Use offsets, bool is_gradient) {
    if (const StageId by = maker(s, use); copies_tokens(by, use))
      return quantize_tokens(by, form, state(s, use), is_gradient);
    const State of = state(s, use);
    Codes rows, columns;
    if (recipe_.turns || needed_rows_.contains(of)) rows = rows_[of] = row_codes(use.value);
    if (!recipe_.turns && needed_columns_.contains(of))
      columns = columns_[of] = column_codes(use.value, offsets);
    insert_quantize(s, form, use, offsets, none(), rows, columns, is_gradient);
  }
  Codes rows_of(StageId s, const Form& form, Use use, Use offsets, bool is_gradient) {
    const State of = state(s, use);
    if (!rows_.contains(of)) quantize(s, form, use, offsets, is_gradient);
    return rows_.at(of);
  }
  Codes columns_of(StageId s, const Form& form, Use use, Use offsets, bool is_gradient) {
    const State of = state(s, use);
    if (const auto known = columns_.find(of); known != columns_.end()) return known->second;
    if (!recipe_.turns) {
      quantize(s, form, use, offsets, is_gradient);
      return columns_.at(of);
    }
    const Codes rows = rows_of(s, form, use, offsets, is_gradient);
    const Codes columns = columns_[of] = column_codes(use.value, offsets);
    Stage stage = ahead_of(s, form.turn, Phase::BackwardWeight);
    stage.uses = {r(rows.codes), r(rows.scale), r(offsets.value), w(columns.codes), w(columns.scale)};
    stage.attrs = attrs();
    edit_.insert_before(s, std::move(stage));
    return columns;
  }
  Codes weight_of(StageId s, const Form& form, Use use, bool turned) {
    const auto [at, is_new] = weights_.try_emplace({state(s, use), turned});
    if (!is_new) return at->second;
    std::vector<int64_t> shape = edit_.value(use.value).shape;
    const size_t rank = shape.size();
    if (turned) std::swap(shape[rank - 1], shape[rank - 2]);
    std::vector<int64_t> scale = shape;
    shape[rank - 1] = base::ceil_div(shape[rank - 1], recipe_.per_byte);
    scale[rank - 1] = base::ceil_div(scale[rank - 1], recipe_.block);
    scale[rank - 2] = base::ceil_div(scale[rank - 2], recipe_.weight_rows);
    const ValueId codes = make(use.value, turned ? ".turned" : ".codes", recipe_.codes, std::move(shape));
    at->second = paired(
        {codes, make(use.value, turned ? ".turned_scale" : ".codes_scale", recipe_.scale, std::move(scale))});
    Stage stage = ahead_of(s, form.weight, turned ? Phase::BackwardInput : Phase::Forward);
    AttrSet more = {{"turned", turned ? 1.0 : 0.0}};
    stage.uses = {r(use.value), w(at->second.codes), w(at->second.scale)};
    if (!turned) {
      const Counters c = counters(form.module, CodeSide::Weights);
      const Use coords = coords_for(same_on(use.value), c, more);
      stage.uses = {r(use.value), coords, w(at->second.codes), w(at->second.scale), c.counts, c.largest};
    }
    stage.attrs = attrs(std::move(more));
    edit_.insert_before(s, std::move(stage));
    return at->second;
  }

  void rewrite(StageId s, const Form& form) {
    Stage product = edit_[s];
    const bool grouped = is_grouped(product);
    const Use offsets = sides(product).offsets;
    const auto side = [](const Codes& c) { return std::pair{r(c.codes), r(c.scale)}; };
    const auto set = [&](const Codes& a, const Codes& b, std::vector<Use> rest) {
      const auto [x, x_scale] = side(a);
      const auto [y, y_scale] = side(b);
      product.uses = {x, x_scale, y, y_scale};
      if (grouped) product.uses.push_back(r(offsets.value));
      product.uses.insert(product.uses.end(), rest.begin(), rest.end());
    };
    const auto require_no_bias = [&](std::initializer_list<Use> uses) {
      for (const Use& use : uses) PLEAT_CHECK(use.value == kNoValue, "{} has a bias", stage_name(product));
    };
    if (product.phase == Phase::Forward && !grouped) {
      const signature::linear::Forward<Use> a(product.uses);
      const Codes rows = rows_of(s, form, a.x, offsets, false);
      set(rows, weight_of(s, form, a.w, false), {a.bias, a.residual, a.y});
    } else if (product.phase == Phase::Forward) {
      const signature::grouped_linear::Forward<Use> a(product.uses);
      require_no_bias({a.bias, a.row_scale});
      const Codes rows = rows_of(s, form, a.x, offsets, false);
      set(rows, weight_of(s, form, a.w, false), {a.y});
    } else if (product.phase == Phase::BackwardInput && !grouped) {
      const signature::linear::BackwardInput<Use> a(product.uses);
      const Codes rows = rows_of(s, form, a.dy, offsets, true);
      set(rows, weight_of(s, form, a.w, true), {a.dx});
    } else if (product.phase == Phase::BackwardInput) {
      const signature::grouped_linear::BackwardInput<Use> a(product.uses);
      require_no_bias({a.bias, a.drow_scale});
      const Codes rows = rows_of(s, form, a.dy, offsets, true);
      set(rows, weight_of(s, form, a.w, true), {a.dx});
    } else if (!grouped) {
      const signature::linear::BackwardWeight<Use> a(product.uses);
      require_no_bias({a.dbias});
      const Codes dy = columns_of(s, form, a.dy, offsets, true);
      set(dy, columns_of(s, form, a.x, offsets, false), {a.dw});
    } else {
      const signature::grouped_linear::BackwardWeight<Use> a(product.uses);
      require_no_bias({a.row_scale, a.dbias});
      const Codes dy = columns_of(s, form, a.dy, offsets, true);
      set(dy, columns_of(s, form, a.x, offsets, false), {a.dw});
    }
    product.op = form.scaled;
    product.attrs = attrs();
    edit_[s] = std::move(product);
  }

  const config::Config& config_;
  const RecipeId id_;
  const Recipe recipe_;
  const std::vector<model::Parameter> parameters_;
  Edit edit_;
  ValueId coords_ = kNoValue, counts_ = kNoValue, largest_ = kNoValue;
  std::map<int, Counters> counters_;
  std::map<State, StageId> written_by_;
  std::set<ValueId> read_wide_;     // by a stage that takes no codes
  std::set<std::string> replaced_;  // values that codes have taken the place of
  std::vector<std::vector<int>> writes_;
  std::set<State> needed_rows_, needed_columns_;
  std::map<State, Codes> rows_, columns_;
  std::map<std::pair<State, bool>, Codes> weights_;
  std::map<std::tuple<Op, Phase, int, int, int, int>, int> parts_;
  std::set<std::string> names_;
};

}  // namespace

Program low_precision(Program program, const config::Config& config) {
  return Coder(std::move(program), config).run();
}

}  // namespace pleat::schedule
