// Inputs and results: every one that a program of a model has is a row of program/step_values.def, found by it.
#include "program/step_values.h"

#include <gtest/gtest.h>

#include "schedule/build.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

namespace step = program::step;
using program::kNoValue;
using program::Life;

TEST(StepValues, EveryInputAndResultOfAModelIsARow) {
  const config::Config c =
      make_config({"model.num_mtp_layers=1", "train.num_microbatches=2",
                   "moe.load_balancing=[\"aux\",\"global_aux\"]", "moe.aux_coef=[0.01,0.01]"});
  const auto table = model::make_parameters(c);
  for (const program::Program& p :
       {build_training_step(c, table), build_training_step(c, table, {model::RoutingUse::Record, {}, {}}),
        build_evaluation(c, table), build_logits(c, table)}) {
    const program::StepValues values(p);
    int found = 0;
    for (size_t i = 0; i < p.values.size(); ++i) {
      const program::Value& v = p.values[i];
      if (v.view_of != kNoValue || (v.life != Life::Input && v.life != Life::Result)) continue;
      const program::NameParts parts = program::read_name(v.name);
      bool known = false;
      const auto look = [&]<class T, program::Of kOf>(const program::StepValue<T, kOf>& row) {
        if (parts.what != row.what) return;
        known = true;
        EXPECT_EQ(values.find({row.id, parts.microbatch, parts.layer}), static_cast<int>(i)) << v.name;
        EXPECT_EQ(parts.microbatch >= 0,
                  kOf == program::Of::Microbatch || kOf == program::Of::MicrobatchLayer);
        EXPECT_EQ(parts.layer >= 0, kOf == program::Of::Layer || kOf == program::Of::MicrobatchLayer);
        if constexpr (!std::is_void_v<T>) {
          EXPECT_EQ(v.dtype, dtype_of(row)) << v.name;
        }
      };
#define PLEAT_STEP_VALUE(name, type, of) look(step::name);
#include "program/step_values.def"
#undef PLEAT_STEP_VALUE
      EXPECT_TRUE(known) << v.name;
      ++found;
    }
    EXPECT_GT(found, 5) << p.name;
  }
}

TEST(StepValues, TellLayersAndMicrobatchesApart) {
  const config::Config c = make_config({"train.num_microbatches=2"});
  const program::Program p = build_training_step(c, model::make_parameters(c));
  const program::StepValues values(p);
  EXPECT_NE(values.find(step::tokens.key(0)), values.find(step::tokens.key(1)));
  EXPECT_EQ(values.find(step::tokens.key(2)), kNoValue);
  EXPECT_EQ(p.values[size_t(values.find(step::tokens.key(1)))].name, "mb1.tokens");
  EXPECT_EQ(p.values[size_t(values.find(step::load.key(1)))].name, "L1.load");
  EXPECT_EQ(values.find(step::load.key(c.model.num_layers)), kNoValue);
  EXPECT_EQ(values.find(step::lengths.key()), kNoValue);
  EXPECT_EQ(step::routing.name(3, 2).text, "mb3.L2.routing");
}

}  // namespace
}  // namespace pleat::schedule
