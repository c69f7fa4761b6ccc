#include "tune/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/counted.h"

namespace pleat::tune {
namespace {

using Texts = std::vector<std::string>;

// Sequences of a microbatch, with as many microbatches as keep the tokens of a step.
std::vector<Choice> microbatch_choices(const config::Config& c, const Place& place) {
  const int64_t sequences = c.train.micro_batch * c.train.num_microbatches;
  const int64_t multiple = place.mesh.dp * (place.mesh.vpp > 1 ? place.mesh.pp : 1);
  std::vector<Choice> out;
  for (int64_t b = 1; b * multiple <= sequences; ++b) {
    if (sequences % b != 0 || sequences / b % multiple != 0 || b == c.train.micro_batch) continue;
    const int64_t n = sequences / b;
    out.push_back({fmt::format("{} x mb {}", n, b),
                   {{"train.micro_batch", b}, {"train.num_microbatches", n}},
                   Numbers::Regrouped,
                   fmt::format("{} of {}: the same tokens in a step; activations are kept of {} "
                               "tokens at a time, and experts are balanced over them",
                               base::counted(n, "microbatch", "microbatches"), base::counted(b, "sequence"),
                               b * c.train.seq_len)});
  }
  return out;
}

// Rows of logits at once.
std::vector<Choice> loss_choices(const config::Config& c, const Place&) {
  std::vector<Choice> out;
  for (const int64_t rows : {1024, 4096}) {
    if (rows == c.train.loss_chunk) continue;
    out.push_back(
        {fmt::format("loss {}", rows),
         {{"train.loss_chunk", rows}},
         Numbers::Regrouped,
         fmt::format("logits of {} tokens are in memory at once: more rows are fewer, faster products "
                     "of the head",
                     rows)});
  }
  return out;
}

std::string modules_text(const Texts& modules) { return fmt::format("{}", fmt::join(modules, "+")); }

std::vector<int> moe_layers_of(const config::Config& c, const Place& place) {
  std::vector<int> out;
  for (const int layer : place.layers)
    if (config::is_moe_layer(c, layer)) out.push_back(layer);
  return out;
}

// Sets of modules that free something in this model. `layer` is all of them and what lies between.
std::vector<Choice> recompute_choices(const config::Config& c, const Place& place) {
  const bool moe = config::num_moe_layers(c) > 0;
  const bool dense = config::num_moe_layers(c) < c.model.num_layers;
  const std::vector<int> moe_layers = moe_layers_of(c, place);
  Texts modules = {"norm", "activation", "core_attention"};
  if (moe) modules.push_back("experts");
  if (moe && c.moe.shared_ffn_hidden_size > 0) modules.push_back("shared_experts");
  std::vector<Choice> out;
  const auto add = [&](Texts set, std::vector<size_t> parts, std::string cost) {
    // Layers that have none of it would only be named.
    const bool only_moe = std::all_of(
        set.begin(), set.end(), [](const std::string& m) { return m == "experts" || m == "shared_experts"; });
    Choice choice{
        "recompute " + modules_text(set), {{"recompute.modules", set}}, Numbers::Same, std::move(cost)};
    choice.layers_key = "recompute.layers";
    choice.layers = only_moe ? moe_layers : place.layers;
    choice.parts = std::move(parts);
    out.push_back(std::move(choice));
  };
  const auto bit = [&](const char* name) -> size_t {
    const auto at = std::find(modules.begin(), modules.end(), name);
    return at == modules.end() ? 0 : size_t{1} << (at - modules.begin());
  };
  std::vector<size_t> single(modules.size());
  const auto add_sets = [&](bool of_one) {
    for (size_t mask = 1; mask < size_t{1} << modules.size(); ++mask) {
      if (((mask & (mask - 1)) == 0) != of_one) continue;
      // The activation of an expert is part of experts.
      if (!dense && (mask & bit("experts")) && (mask & bit("activation"))) continue;
      Texts set;
      std::vector<size_t> parts;
      for (size_t m = 0; m < modules.size(); ++m)
        if (mask & (size_t{1} << m)) set.push_back(modules[m]), parts.push_back(single[m]);
      if (of_one)
        single[static_cast<size_t>(std::find(modules.begin(), modules.end(), set[0]) - modules.begin())] =
            out.size();
      add(set, of_one ? std::vector<size_t>{} : parts,
          fmt::format("outputs of {} are freed after the forward and computed a second time in the backward",
                      fmt::join(set, ", ")));
    }
  };
  add_sets(true);
  add_sets(false);
  add({"layer"}, {},
      "the forward of these layers runs twice, all but the choice of experts; only their inputs are kept");
  return out;
}

// Sets of modules whose saved values wait on the host. Of a GPU: ranks of a CPU have no other memory.
std::vector<Choice> offload_choices(const config::Config& c, const Place& place) {
  if (c.device.kind != "cuda") return {};
  std::vector<Choice> out;
  for (const Texts& set :
       std::vector<Texts>{{"attn_norm"}, {"core_attention"}, {"expert_up"}, {"activation"}, {"layer"}}) {
    Choice choice{
        "offload " + modules_text(set),
        {{"offload.modules", set}},
        Numbers::Same,
        fmt::format("what {} saves for the backward waits in the host's memory; its copies lie beside the "
                    "work of the step as far as the link to the host allows",
                    set[0] == "layer" ? "a layer" : modules_text(set))};
    choice.layers_key = "offload.layers";
    choice.layers = set[0] == "expert_up" ? moe_layers_of(c, place) : place.layers;
    choice.beside = true;
    out.push_back(std::move(choice));
  }
  return out;
}

bool narrow(const config::Config& c) { return c.model.dtype == "bfloat16"; }

std::vector<Choice> gradient_choices(const config::Config& c, const Place&) {
  if (!narrow(c)) return {};
  std::vector<Choice> out;
  if (config::num_moe_layers(c) > 0)
    out.push_back({"expert grads bf16",
                   {{"optimizer.groups.experts.grad_dtype", std::string("bfloat16")}},
                   Numbers::Rounded,
                   "2 bytes a parameter of the experts less; their sums over microbatches are rounded once "
                   "per microbatch"});
  out.push_back({"grads bf16",
                 {{"optimizer.grad_dtype", std::string("bfloat16")}},
                 Numbers::Rounded,
                 "2 bytes a parameter less; sums over microbatches are rounded once per microbatch"});
  return out;
}

const char* const kClipBy = "optimizer.clip_by";

// Where the norm that clips is known before the last gradient, or the user lets it be another one. What it asks besides,
// the program says.
std::vector<Choice> update_choices(const config::Config& c, const Place& place) {
  const Setting at{"optimizer.update_at", std::string("backward")};
  const std::string cost =
      "weights move inside the backward, and each gradient is freed then; a gradient that is not finite ends "
      "the "
      "run";
  if (c.optimizer.clip == 0 || c.optimizer.clip_by != "global")
    return {{"update at once", {at}, Numbers::Same, cost}};
  if (std::find(place.free.begin(), place.free.end(), kClipBy) == place.free.end()) return {};
  const auto clipped = [&](const char* by, const char* what) {
    return Choice{fmt::format("update at once, clip {}", by),
                  {at, {kClipBy, std::string(by)}},
                  Numbers::Rounded,
                  fmt::format("{}; {}", cost, what)};
  };
  return {clipped("previous", "gradients are clipped by the norm of the step before"),
          clipped("tensor", "each tensor's gradient is clipped by its own norm")};
}

// What the optimizer keeps beside a weight: in fewer bits, on the host, and both. Few of all combinations: both moments
// are coded alike, and what goes to the host goes all.
std::vector<Choice> state_choices(const config::Config& c, const Place&) {
  if (c.model.dtype == "float64") return {};
  constexpr const char *kFirst = "optimizer.moment1_dtype", *kSecond = "optimizer.moment2_dtype";
  const auto set = [](const char* key, const char* value) { return Setting{key, std::string(value)}; };
  const std::string lost = "changes of less than 1/512 of the second are lost";
  struct Bits {
    std::string name;
    std::vector<Setting> sets;
    int rounds;
    std::string cost;
  };
  std::vector<Bits> bits = {
      {"m1 bf16",
       {set(kFirst, "bfloat16")},
       1,
       "2 bytes a parameter less; the first moment is rounded in every update"},
      {"m2 bf16",
       {set(kSecond, "bfloat16")},
       1,
       "2 bytes a parameter less; the second moment is rounded in every update, and changes of less than "
       "1/512 of it "
       "are lost"},
      {"moments bf16",
       {set(kFirst, "bfloat16"), set(kSecond, "bfloat16")},
       2,
       "4 bytes a parameter less; both moments are rounded in every update, and " + lost},
      {"moments 8 bit",
       {set(kFirst, "block8"), set(kSecond, "block8")},
       4,
       "nearly 6 bytes a parameter less; both moments are rounded to codes of 8 bits in every update"}};
  if (narrow(c))
    for (const auto& [name, value, rounds, bytes] :
         {std::tuple{"24 bit", "float24", 5, "nearly 7"}, std::tuple{"16 bit", "bfloat16", 6, "nearly 8"}})
      bits.push_back(
          {fmt::format("moments 8 bit, master {}", name),
           {set(kFirst, "block8"), set(kSecond, "block8"), set("optimizer.master", value)},
           rounds,
           fmt::format("{} bytes a parameter less; both moments are rounded to codes of 8 bits in every "
                       "update, and the weight that the update moves to {}s, up or down by chance",
                       bytes, name)});
  std::vector<Choice> out;
  for (const Bits& b : bits) out.push_back({b.name, b.sets, Numbers::Rounded, b.cost});
  for (size_t i = 0; i < bits.size(); ++i) out[i].rounds = bits[i].rounds;
  if (c.device.kind != "cuda") return out;  // ranks of a CPU have no other memory
  const Setting host = set("optimizer.state_space", "host");
  const std::string streams =
      "states lie in the host's memory and stream through the update, which lasts as long as the link takes";
  out.push_back({"states on host", {host}, Numbers::Same, streams});
  for (const Bits& b : bits) {
    if (b.sets.size() < 2) continue;  // one moment alone
    Choice both{b.name + ", on host", b.sets, Numbers::Rounded, fmt::format("{}; {}", b.cost, streams)};
    both.sets.push_back(host);
    both.rounds = b.rounds;
    out.push_back(std::move(both));
  }
  return out;
}

}  // namespace

const std::vector<FamilyRow>& family_table() {
  using Keys = std::vector<std::string_view>;
  static const Keys gradients = {"optimizer.grad_dtype", "optimizer.groups.experts.grad_dtype"};
  static const Keys states = {"optimizer.moment1_dtype", "optimizer.moment2_dtype",
                              "optimizer.moment_dtype",  "optimizer.master",
                              "optimizer.state_space",   "optimizer.state_bucket_mb"};
  static const Keys offload = {"offload.modules", "offload.layers", "offload.fraction"};
  static const Keys recompute = {"recompute.modules", "recompute.layers"};
  static const std::vector<FamilyRow> table = {
      {.name = "micro-batch",
       .keys = {"train.micro_batch"},
       .defaults = {},  // the product of both is the user's
       .fine = true,
       .choices = microbatch_choices},
      {.name = "loss chunk",
       .keys = {"train.loss_chunk"},
       .defaults = {"train.loss_chunk"},
       .fine = true,
       .choices = loss_choices},
      {.name = "gradients", .keys = gradients, .defaults = gradients, .choices = gradient_choices},
      {.name = "update",
       .keys = {"optimizer.update_at"},
       .defaults = {"optimizer.update_at"},
       .on_request = {kClipBy},
       .choices = update_choices},
      {.name = "states", .keys = states, .defaults = states, .by_choice = true, .choices = state_choices},
      {.name = "offload",
       .keys = offload,
       .defaults = offload,
       .per_microbatch = true,
       .choices = offload_choices},
      {.name = "recompute",
       .keys = recompute,
       .defaults = recompute,
       .per_microbatch = true,
       .choices = recompute_choices},
  };
  return table;
}

bool stands_for(std::string_view other, std::string_view key) {
  return other == "optimizer.moment_dtype" &&
         (key == "optimizer.moment1_dtype" || key == "optimizer.moment2_dtype");
}

}  // namespace pleat::tune
