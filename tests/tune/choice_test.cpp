// The table of choices says only what the schema has, keeps what the user set, and takes layers as it says.
#include "tune/choice.h"

#include <gtest/gtest.h>

#include <set>

#include "support/refusal.h"
#include "tune/memory_size.h"
#include "tune/table.h"
#include "tune_support.h"

namespace pleat::tune {
namespace {

using testing::gpu_step;
using testing::message_of;

const Family* family(const Space& space, std::string_view name) {
  for (const Family& f : space.families)
    if (f.name == name) return &f;
  return nullptr;
}

using Words = std::vector<std::string>;

// Of a family that is open; "" where it is not.
std::string names_of(const Space& space, std::string_view name) {
  std::string out;
  if (const Family* f = family(space, name))
    for (size_t i = 1; i < f->choices.size(); ++i) out += f->choices[i].name + ";";
  return out;
}

TEST(Choices, NameKeysThatAreThereAndSayWhatTheyCost) {
  std::set<std::string_view> names;
  for (const FamilyRow& row : family_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.keys.empty());
    for (const std::string_view key : row.keys) EXPECT_TRUE(config::find_key(key)) << key;
    for (const std::string_view key : row.defaults) EXPECT_TRUE(config::find_key(key)) << key;
  }
  const Space space =
      make_space(gpu_step({"moe.shared_ffn_hidden_size=64"}), 1, {.free = {"optimizer.clip_by"}});
  EXPECT_EQ(space.families.size(), family_table().size());
  for (const Family& f : space.families) {
    std::set<std::string> rows;
    EXPECT_TRUE(f.choices[0].sets.empty());
    for (size_t i = 1; i < f.choices.size(); ++i) {
      const Choice& c = f.choices[i];
      EXPECT_TRUE(rows.insert(c.name).second) << c.name;
      EXPECT_FALSE(c.cost.empty()) << c.name;
      for (const size_t part : c.parts) {
        ASSERT_LT(part, i);
        EXPECT_TRUE(f.choices[part].parts.empty());
      }
      for (const Setting& s : c.sets) ASSERT_TRUE(config::find_key(s.key)) << s.key;
      // Each by itself is a valid configuration that differs in those keys alone.
      Candidate one = without_any(space);
      const size_t at = static_cast<size_t>(&f - space.families.data());
      one.choice[at] = i, one.layers[at] = static_cast<int>(c.layers.size());
      // These need a partner: more rows than a microbatch of one sequence has, one microbatch.
      if (f.name == "loss chunk" || f.name == "update") continue;
      const config::Config config = configured(space, one);
      EXPECT_EQ(message_of([&] { config::validate(config); }), "") << c.name;
      EXPECT_EQ(config::parse(config::to_toml(config)), config) << c.name;
      EXPECT_FALSE(config::changes(space.base, config).empty()) << c.name;
    }
  }
}

TEST(Choices, KeepTheTokensOfAStep) {
  const Space space = make_space(gpu_step({"train.micro_batch=2", "train.num_microbatches=6"}), 1,
                                 {.free = {"train.micro_batch"}});
  const Family* f = family(space, "micro-batch");
  ASSERT_TRUE(f);
  EXPECT_EQ(f->choices.size(), 6u);  // 12 = 1, 2, 3, 4, 6, 12; 2 is there already
  for (size_t i = 0; i < f->choices.size(); ++i) {
    Candidate c = without_any(space);
    c.choice[static_cast<size_t>(f - space.families.data())] = i;
    const config::Config config = configured(space, c);
    EXPECT_EQ(config.train.micro_batch * config.train.num_microbatches, 12);
  }
}

TEST(Choices, WhatTheUserSetIsKept) {
  const config::Config asked =
      gpu_step({"recompute.modules=[\"norm\"]", "optimizer.moment_dtype=bfloat16", "train.micro_batch=1"});
  const Space kept = make_space(asked, 1, {});
  EXPECT_FALSE(family(kept, "recompute"));
  // Both moments go by the key that was set; the rest of the optimizer's states does not.
  EXPECT_EQ(names_of(kept, "states"), "states on host;");
  EXPECT_FALSE(family(kept, "micro-batch"));
  EXPECT_TRUE(family(kept, "gradients"));
  EXPECT_EQ(kept.kept,
            (std::vector<std::string>{"train.micro_batch", "optimizer.moment_dtype", "recompute.modules"}));
  for (const Candidate& c : testing::every_candidate(kept)) {
    const config::Config config = configured(kept, c);
    EXPECT_EQ(config.recompute.modules, (std::vector<std::string>{"norm"}));
    EXPECT_EQ(config.optimizer.moment_dtype, "bfloat16");
  }
  const Space freed = make_space(asked, 1, {.free = {"recompute.modules"}});
  ASSERT_TRUE(family(freed, "recompute"));
  EXPECT_EQ(names_of(freed, "states"), "states on host;");
  EXPECT_TRUE(freed.base.recompute.modules.empty());
  // The key of one moment does not let go what both go by.
  const Space one = make_space(asked, 1, {.free = {"optimizer.moment1_dtype"}});
  EXPECT_EQ(names_of(one, "states"), "states on host;");
  EXPECT_EQ(one.base.optimizer.moment_dtype, "bfloat16");
  const Space both = make_space(asked, 1, {.free = {"optimizer.moment_dtype"}});
  EXPECT_NE(names_of(both, "states").find("m1 bf16;m2 bf16;moments bf16;"), std::string::npos);
  EXPECT_EQ(both.base.optimizer.moment_dtype, "float32");
}

TEST(Choices, AStateThatTheUserSetLeavesTheOthersOpen) {
  EXPECT_EQ(names_of(make_space(gpu_step({"optimizer.moment1_dtype=bfloat16"}), 1, {}), "states"),
            "m2 bf16;states on host;");
  const std::string on_host = names_of(
      make_space(gpu_step({"optimizer.state_space=host", "optimizer.state_bucket_mb=128"}), 1, {}), "states");
  EXPECT_EQ(on_host.find("host"), std::string::npos) << on_host;
  EXPECT_NE(on_host.find("moments 8 bit, master 16 bit;"), std::string::npos) << on_host;
  // A bucket of states that no longer go anywhere would be a key without effect.
  const Space freed = make_space(gpu_step({"optimizer.state_space=host", "optimizer.state_bucket_mb=128"}), 1,
                                 {.free = {"optimizer.state_space"}});
  EXPECT_TRUE(freed.kept.empty());
  EXPECT_EQ(freed.base.optimizer, config::OptimizerConfig());
}

TEST(Choices, StatesThatADeviceHasAPlaceFor) {
  const Space cpu = make_space(gpu_step({"device.kind=cpu", "model.dtype=float32"}), 1, {});
  EXPECT_EQ(names_of(cpu, "states"), "m1 bf16;m2 bf16;moments bf16;moments 8 bit;");
  EXPECT_EQ(names_of(make_space(gpu_step({"device.kind=cpu", "model.dtype=float64"}), 1, {}), "states"), "");
}

TEST(Choices, AnotherNormClipsOnlyWhereTheUserLetsIt) {
  EXPECT_EQ(names_of(make_space(gpu_step(), 1, {}), "update"), "");
  EXPECT_EQ(names_of(make_space(gpu_step(), 1, {.free = {"optimizer.clip_by"}}), "update"),
            "update at once, clip previous;update at once, clip tensor;");
  // One that is there stays as it is, whoever may change it.
  for (const std::vector<std::string>& free : {Words{}, Words{"optimizer.clip_by"}}) {
    const Space set = make_space(gpu_step({"optimizer.clip_by=tensor"}), 1, {.free = free});
    EXPECT_EQ(names_of(set, "update"), "update at once;");
    EXPECT_TRUE(set.kept.empty());
    EXPECT_EQ(set.base.optimizer.clip_by, "tensor");
  }
  EXPECT_EQ(names_of(make_space(gpu_step(), 1, {.exact = true, .free = {"optimizer.clip_by"}}), "update"),
            "");
}

TEST(Choices, AKeyThatNoChoiceSetsCannotBeLetGo) {
  const std::string said = message_of([] { make_space(gpu_step(), 1, {.free = {"model.num_layers"}}); });
  EXPECT_NE(said.find("--free \"model.num_layers\""), std::string::npos) << said;
  EXPECT_NE(said.find("recompute.modules"), std::string::npos) << said;
}

TEST(Choices, ModulesThatTheModelHas) {
  const auto names = [](const std::vector<std::string>& sets) {
    const Space space = make_space(gpu_step(sets), 1, {});
    std::string out;
    for (const Choice& c : family(space, "recompute")->choices) out += c.name + ";";
    return out;
  };
  EXPECT_EQ(names({}).find("shared_experts"), std::string::npos);
  EXPECT_NE(names({"moe.shared_ffn_hidden_size=64"}).find("shared_experts"), std::string::npos);
  // Part of experts where there is no other.
  EXPECT_EQ(names({}).find("activation+core_attention+experts"), std::string::npos);
  const std::string dense = names({"model.leading_dense_layers=1", "model.ffn_hidden_size=64"});
  EXPECT_NE(dense.find("activation+core_attention+experts"), std::string::npos);
}

TEST(Choices, ModulesOfExpertsAreInTheirLayersAlone) {
  const Space space =
      make_space(gpu_step({"model.leading_dense_layers=1", "model.ffn_hidden_size=64"}), 1, {});
  for (const Choice& c : family(space, "recompute")->choices) {
    if (c.name == "recompute experts") {
      EXPECT_EQ(c.layers, (std::vector<int>{1, 2, 3}));
    } else if (c.name == "recompute norm") {
      EXPECT_EQ(c.layers, (std::vector<int>{0, 1, 2, 3}));
    }
  }
}

TEST(Choices, LayersAreTakenFromEveryPipelineStage) {
  const Space space = make_space(gpu_step({"parallel.pp=2"}), 2, {});
  const Family* f = family(space, "recompute");
  ASSERT_TRUE(f);
  EXPECT_EQ(f->choices[1].layers, (std::vector<int>{0, 2, 1, 3}));
  Candidate c = without_any(space);
  const size_t at = static_cast<size_t>(f - space.families.data());
  c.choice[at] = 1, c.layers[at] = 3;
  EXPECT_EQ(configured(space, c).recompute.layers, "0-2");
  c.layers[at] = 2;
  EXPECT_EQ(configured(space, c).recompute.layers, "0,2");
  c.layers[at] = 4;
  EXPECT_EQ(configured(space, c).recompute.layers, "all");
  EXPECT_EQ(text_of(space, c), f->choices[1].name);
}

TEST(Choices, LayersAsText) {
  EXPECT_EQ(layers_text({0, 1, 2, 5}, 8), "0-2,5");
  EXPECT_EQ(layers_text({3, 1}, 4), "1,3");
  EXPECT_EQ(layers_text({1, 0}, 2), "all");
}

TEST(MemorySize, TakesEveryUnit) {
  EXPECT_EQ(memory_size("138GiB", "--x"), int64_t{138} << 30);
  EXPECT_EQ(memory_size("1.5 GiB", "--x"), int64_t{3} << 29);
  EXPECT_EQ(memory_size("80GB", "--x"), 80'000'000'000);
  EXPECT_EQ(memory_size("7B", "--x"), 7);
  EXPECT_EQ(memory_size("1024TiB", "--x"), int64_t{1} << 50);
}

TEST(MemorySize, SaysWhatIsWrong) {
  for (const char* text : {"", "GiB", "138", "138gib", "-1GiB", "0GiB", "nanGiB", "infGiB", "1e30GiB",
                           "1025TiB", "138GiBs", "0x10GiB", "0.1B"}) {
    const std::string said = message_of([&] { memory_size(text, "--device-memory"); });
    EXPECT_NE(said.find("--device-memory"), std::string::npos) << text << ": " << said;
  }
  EXPECT_NE(message_of([] { memory_size("138", "--x"); }).find("the unit is missing"), std::string::npos);
}

}  // namespace
}  // namespace pleat::tune
