// Keys of [optimizer] and of its parameter groups.
#include <algorithm>

#include "config/schema.h"

namespace pleat::config {

namespace {

using GroupConfig = OptimizerConfig::GroupConfig;

template <class Field>
Key key(const char* name, Field OptimizerConfig::*field, std::string meaning) {
  return make_key(std::string("optimizer.") + name, &Config::optimizer, field, std::move(meaning));
}

// Element type of one moment. Unset, and not written down, where moment_dtype or the model says it.
Key moment_key(const char* name, std::string OptimizerConfig::*field, std::string meaning) {
  Key out = key(name, field, std::move(meaning));
  out.present = [=](const Config& config) { return config.optimizer.*field != "unset"; };
  out.one_of({"unset", "float32", "bfloat16", "block8"}).on_resume(OnResume::Free);
  return out.when({"model.dtype is not \"float64\"", {"model.dtype"}, [](const Config& c) {
                     return c.model.dtype != "float64";
                   }});
}

Condition lr_moves() {
  return {"optimizer.schedule is not \"constant\"", {"optimizer.schedule"}, [](const Config& c) {
            return c.optimizer.schedule != "constant";
          }};
}

Condition decays() {
  return {"some weight_decay > 0", {"optimizer.weight_decay"}, [](const Config& c) {
            return c.optimizer.weight_decay > 0 ||
                   std::any_of(c.optimizer.groups.begin(), c.optimizer.groups.end(),
                               [](const auto& entry) { return entry.second.weight_decay > 0; });
          }};
}

Condition is_narrow() {
  return {"model.dtype is \"bfloat16\"", {"model.dtype"}, [](const Config& c) {
            return c.model.dtype == "bfloat16";
          }};
}

Condition has_biases() {
  return {"the model has biases",
          {"model.qkv_bias", "model.attn_out_bias", "model.mlp_bias", "model.attention_sinks",
           "moe.router_bias", "moe.expert_bias"},
          [](const Config& c) {
            return c.model.qkv_bias || c.model.attn_out_bias || c.model.mlp_bias || c.model.attention_sinks ||
                   c.moe.router_bias || c.moe.expert_bias;
          }};
}

// A group's tensors must exist, or its settings would do nothing.
void add_group_conditions(Key& key, const std::string& group) {
  if (group == "router" || group == "experts" || group == "shared_experts") key.when(has_experts());
  if (group == "shared_experts") key.when(has_shared_expert());
  if (group == "mlp") key.when(has_dense_layers());
  if (group == "mtp") key.when(has_mtp_layers());
  if (group == "head")
    key.when({"model.tie_embeddings = false (a tied head belongs to the group embedding)",
              {"model.tie_embeddings"},
              [](const Config& c) { return !c.model.tie_embeddings; }});
  key.when({"optimizer.freeze does not name " + group, {"optimizer.freeze"}, [group](const Config& c) {
              return std::find(c.optimizer.freeze.begin(), c.optimizer.freeze.end(), group) ==
                     c.optimizer.freeze.end();
            }});
}

bool is_set(double value) { return value >= 0; }
bool is_set(const std::string& value) { return value != "unset"; }

template <class T>
Key group_key(const std::string& group, const char* name, T GroupConfig::*field, std::string meaning) {
  Key key;
  key.path = "optimizer.groups." + group + "." + name;
  key.meaning = std::move(meaning);
  key.get = [=](const Config& config) {
    const auto found = config.optimizer.groups.find(group);
    return Value(found == config.optimizer.groups.end() ? GroupConfig{}.*field : found->second.*field);
  };
  key.set = [=](Config& config, Value value) {
    config.optimizer.groups[group].*field = std::get<T>(std::move(value));
  };
  key.present = [=](const Config& config) {
    const auto found = config.optimizer.groups.find(group);
    return found != config.optimizer.groups.end() && is_set(found->second.*field);
  };
  add_group_conditions(key, group);
  return key;
}

void add_group_keys(std::vector<Key>& keys) {
  for (const std::string& group : group_names()) {
    keys.push_back(group_key(group, "lr_mult", &GroupConfig::lr_mult,
                             "Multiplies the learning rate of the parameters of group " + group + ".")
                       .range(0, 1e3)
                       .see({"optimizer.lr"}));
    Key decay = group_key(group, "weight_decay", &GroupConfig::weight_decay,
                          "Weight decay of the parameters of group " + group +
                              " instead of optimizer.weight_decay. The decay_norms, decay_biases and "
                              "decay_embeddings switches still decide what is decayed at all.");
    decay.range(0, 1).see({"optimizer.weight_decay"});
    if (group == "norm")
      decay.when({"optimizer.decay_norms = true", {"optimizer.decay_norms"}, [](const Config& c) {
                    return c.optimizer.decay_norms;
                  }});
    if (group == "embedding")
      decay.when({"optimizer.decay_embeddings = true", {"optimizer.decay_embeddings"}, [](const Config& c) {
                    return c.optimizer.decay_embeddings;
                  }});
    keys.push_back(std::move(decay));
    keys.push_back(group_key(group, "grad_dtype", &GroupConfig::grad_dtype,
                             "Element type of the gradients of group " + group +
                                 ". unset: as optimizer.grad_dtype says.")
                       .one_of({"unset", "float32", "bfloat16"})
                       .on_resume(OnResume::Free)
                       .when(is_narrow())
                       .see({"optimizer.grad_dtype"}));
  }
}

}  // namespace

const std::vector<std::string>& group_names() {
  static const std::vector<std::string> names = {"attention", "router", "shared_experts", "experts", "mlp",
                                                 "embedding", "head",   "norm",           "mtp"};
  return names;
}

std::vector<Key> optimizer_keys() {
  using O = OptimizerConfig;
  std::vector<Key> keys;
  keys.push_back(key("lr", &O::lr, "Peak learning rate of AdamW.")
                     .above(0, 1e3)
                     .see({"optimizer.min_lr", "optimizer.schedule"}));
  keys.push_back(key("min_lr", &O::min_lr, "Learning rate the schedule ends at; at most optimizer.lr.")
                     .range(0, 1e3)
                     .when(lr_moves())
                     .see({"optimizer.lr", "optimizer.decay_steps"}));
  keys.push_back(
      key("schedule", &O::schedule,
          "Learning rate after the warm-up. cosine and linear fall from lr to min_lr until step "
          "decay_steps. wsd holds lr and falls linearly over the last decay_steps steps. constant holds "
          "lr.")
          .one_of({"cosine", "linear", "wsd", "constant"})
          .see({"optimizer.warmup_steps", "optimizer.decay_steps", "optimizer.min_lr"}));
  const Condition narrow = is_narrow();
  keys.push_back(
      key("grad_dtype", &O::grad_dtype,
          "Element type of the gradients of weights. bfloat16 halves their memory; sums over microbatches "
          "are then rounded once per microbatch. optimizer.groups.GROUP.grad_dtype says it for one group.")
          .one_of({"float32", "bfloat16"})
          .on_resume(OnResume::Free)
          .when(narrow)
          .see({"optimizer.moment_dtype", "model.dtype"}));
  keys.push_back(
      key("moment_dtype", &O::moment_dtype,
          "Element type of those of AdamW's two moments that have no key of their own. block8: codes of "
          "8 bits, as optimizer.moment1_dtype says.")
          .one_of({"float32", "bfloat16", "block8"})
          .on_resume(OnResume::Free)
          .when({"model.dtype is \"bfloat16\" (in a float32 model optimizer.moment1_dtype and "
                 "optimizer.moment2_dtype say it)",
                 narrow.decided_by, narrow.holds})
          .when({"optimizer.moment1_dtype or optimizer.moment2_dtype is \"unset\"",
                 {"optimizer.moment1_dtype", "optimizer.moment2_dtype"},
                 [](const Config& c) {
                   return c.optimizer.moment1_dtype == "unset" || c.optimizer.moment2_dtype == "unset";
                 }})
          .see(
              {"optimizer.moment1_dtype", "optimizer.moment2_dtype", "optimizer.grad_dtype", "model.dtype"}));
  keys.push_back(moment_key("moment1_dtype", &O::moment1_dtype,
                            "Element type of AdamW's first moment. unset: as optimizer.moment_dtype "
                            "says; in a float32 model float32. block8: codes of 8 bits, and one float32 "
                            "scale for every 256 elements; biases and norm weights keep float32.")
                     .see({"optimizer.moment_dtype", "optimizer.moment2_dtype", "optimizer.beta1"}));
  keys.push_back(
      moment_key("moment2_dtype", &O::moment2_dtype,
                 "Element type of AdamW's second moment. unset: as optimizer.moment_dtype "
                 "says; in a float32 model float32. block8: codes of 8 bits of its root, and one float32 "
                 "scale for every 256 elements; biases and norm weights keep float32. A change that is too "
                 "small is lost: with bfloat16 one of less than 1/512, so that with beta2 above 0.998 a "
                 "moment that should shrink stays; with block8 one of less than 1/23, beside the largest of "
                 "its 256, with beta2 above 0.957.")
          .see({"optimizer.moment_dtype", "optimizer.moment1_dtype", "optimizer.beta2"}));
  keys.push_back(
      key("master", &O::master,
          "The weight that the update moves; products see it as bfloat16. float32: the bfloat16 weight and "
          "the "
          "16 bits it leaves out. float24: the weight and 8 bits more; bfloat16: the weight alone. What is "
          "left out then is rounded up or down by chance, so that small changes arrive on average.")
          .one_of({"float32", "float24", "bfloat16"})
          .on_resume(OnResume::Free)
          .when(narrow)
          .see({"optimizer.moment_dtype", "model.dtype"}));
  keys.push_back(
      key("state_space", &O::state_space,
          "Where the moments, and what a bfloat16 weight keeps of its master, lie between two steps. host: "
          "in "
          "the host's memory; the update streams them through the device in buckets, in and out at the same "
          "time.")
          .one_of({"device", "host"})
          .on_resume(OnResume::Free)
          .see({"optimizer.state_bucket_mb"}));
  keys.push_back(key("state_bucket_mb", &O::state_bucket_mb,
                     "Megabytes (2^20 bytes) of states that move at a time; the device has room for two "
                     "buckets. A tensor "
                     "whose states are larger goes in pieces, where one rank has all of it; else a bucket is "
                     "as large as "
                     "it.")
                     .range(1, 65536)
                     .on_resume(OnResume::Free)
                     .when({"optimizer.state_space = \"host\"",
                            {"optimizer.state_space"},
                            [](const Config& c) { return c.optimizer.state_space == "host"; }})
                     .see({"optimizer.state_space"}));
  keys.push_back(
      key("warmup_steps", &O::warmup_steps, "Steps over which the learning rate rises linearly to lr.")
          .range(0, 1e12)
          .see({"optimizer.schedule"}));
  keys.push_back(
      key("decay_steps", &O::decay_steps,
          "cosine, linear: the step, counted from the first and with the warm-up inside, at which min_lr "
          "is reached; 0 is train.steps. wsd: length of the final decay; 0 is a tenth of train.steps.")
          .range(0, 1e12)
          .when(lr_moves())
          .see({"optimizer.schedule", "train.steps"}));
  keys.push_back(key("beta1", &O::beta1, "AdamW's decay of the first moment.").below(0, 1));
  keys.push_back(key("beta2", &O::beta2, "AdamW's decay of the second moment.").below(0, 1));
  keys.push_back(key("eps", &O::eps, "Added to the root of AdamW's second moment.").above(0, 1));
  keys.push_back(
      key("weight_decay", &O::weight_decay, "Decoupled decay: weights shrink by lr * weight_decay each step.")
          .range(0, 1)
          .see({"optimizer.decay_norms", "optimizer.decay_biases", "optimizer.decay_embeddings"}));
  keys.push_back(key("clip", &O::clip,
                     "Gradients are scaled down when their norm is larger than this: that of all of them, "
                     "unless optimizer.clip_by says otherwise. 0 turns it off.")
                     .range(0, 1e9)
                     .see({"optimizer.clip_by"}));
  keys.push_back(
      key("clip_by", &O::clip_by,
          "The norm that optimizer.clip bounds. global: of all gradients of the step. tensor: of each tensor "
          "by itself, which scales large ones alone. previous: of all gradients of the step before, for all "
          "tensors of this one; the first step is not scaled.")
          .one_of({"global", "tensor", "previous"})
          .when({"optimizer.clip > 0",
                 {"optimizer.clip"},
                 [](const Config& c) { return c.optimizer.clip > 0; }})
          .see({"optimizer.clip", "optimizer.update_at"}));
  keys.push_back(
      key("update_at", &O::update_at,
          "When weights move. end: when all gradients of the step are there. backward: each as soon as its "
          "own gradient is there, which then frees its memory; the same bits. A gradient that is not finite "
          "then ends the run, since other weights have moved already.")
          .one_of({"end", "backward"})
          .on_resume(OnResume::Free)
          .when(on_ranks(RankCount::One))
          .when({"train.num_microbatches = 1 (a sum over several is there only at the end)",
                 {"train.num_microbatches"},
                 [](const Config& c) { return c.train.num_microbatches == 1; }})
          .when({"optimizer.clip_by is \"tensor\" or \"previous\", or optimizer.clip = 0 (the norm of all "
                 "gradients is known only at the end)",
                 {"optimizer.clip_by", "optimizer.clip"},
                 [](const Config& c) { return c.optimizer.clip == 0 || c.optimizer.clip_by != "global"; }})
          .see({"optimizer.clip_by", "train.num_microbatches"}));
  keys.push_back(
      key("decay_norms", &O::decay_norms, "Weight decay also acts on norm weights.").when(decays()));
  keys.push_back(
      key("decay_biases", &O::decay_biases,
          "Weight decay also acts on biases: of projections, routers and experts, and on attention sinks.")
          .when(decays())
          .when(has_biases()));
  keys.push_back(key("decay_embeddings", &O::decay_embeddings, "Weight decay also acts on the embedding.")
                     .when(decays()));
  keys.push_back(
      key("freeze", &O::freeze,
          "Classes of parameters that keep their values: no update, no weight decay, no part in the gradient "
          "norm. "
          "With router, a balancing bias of the router stays as it is too. Naming a class the model does not "
          "have is an error.")
          .one_of(
              {"attention", "router", "shared_experts", "experts", "mlp", "embedding", "head", "norm", "mtp"})
          .see({"optimizer.clip"}));
  add_group_keys(keys);
  return keys;
}

}  // namespace pleat::config
