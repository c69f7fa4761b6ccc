// Every kind of malformed program is refused with the stage and the value named.
#include "interpret/check/check.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "interpret/interpret_support.h"

namespace pleat::interpret {
namespace {

using namespace program;

Program small() { return parse(kSmall); }
CheckReport check_with(const std::string& from, const std::string& to) {
  return check(parse(with(kSmall, from, to)));
}

ValueId id(const Program& p, const std::string& name) {
  for (size_t i = 0; i < p.values.size(); ++i)
    if (p.values[i].name == name) return static_cast<ValueId>(i);
  ADD_FAILURE() << name;
  return 0;
}

TEST(Check, AcceptsValidPrograms) {
  EXPECT_EQ(joined(check(small())), "");
  EXPECT_EQ(joined(check(parse(golden_text()))), "");
  EXPECT_EQ(check(small()).host_waits, 0);
}

TEST(Check, WrongArgumentCount) {
  Program p = small();
  p.stages[0].uses.pop_back();
  EXPECT_TRUE(names(check(p), {"fwd mb0 head:", "takes 5 arguments, has 4"}));
}

TEST(Check, MissingArgument) {
  EXPECT_TRUE(names(check_with("x=x[1] w=w", "x=x[1]"), {"fwd mb0 head.1:", "argument 'w' is missing"}));
}

TEST(Check, PhaseTheOpDoesNotHave) {
  Program p = small();
  Stage s;
  s.op = Op::rope_table;
  s.phase = Phase::BackwardWeight;
  s.microbatch = 0;
  p.stages.push_back(s);
  EXPECT_TRUE(names(check(p), {"wgrad mb0 rope_table", "has no phase wgrad"}));
}

TEST(Check, OutputReadAndInputWritten) {
  Program p = small();
  p.stages[0].uses[4].access = Access::Read;
  EXPECT_TRUE(names(check(p), {"fwd mb0 head:", "'y' is an output", "'y[0]' is read"}));
  p = small();
  p.stages[0].uses[0].access = Access::Write;
  EXPECT_TRUE(names(check(p), {"fwd mb0 head:", "'x' is an input", "'x[0]' is written"}));
}

TEST(Check, WritesToInputs) {
  EXPECT_TRUE(names(check_with("dw=w.grad", "dw=x"), {"wgrad mb0 head:", "writes input 'x'"}));
  // Nor through a view that calls itself something else.
  const std::string view =
      with(kSmall, "value parts", "value sly f32[4,4] activations step view=x+0\nvalue parts");
  EXPECT_TRUE(names(check(parse(with(view, "y=y[0]", "y=sly"))), {"fwd mb0 head:", "writes input 'sly'"}));
}

TEST(Check, PersistentWrittenOutsideUpdate) {
  EXPECT_TRUE(names(check_with("dw=w.grad", "dw=w"),
                    {"wgrad mb0 head:", "writes persistent 'w' outside phase update"}));
  const std::string view =
      with(kSmall, "value parts", "value sly f32[4,4] activations step view=w+0\nvalue parts");
  EXPECT_TRUE(
      names(check(parse(with(view, "y=y[0]", "y=sly"))), {"fwd mb0 head:", "writes persistent 'sly'"}));
}

TEST(Check, ReadBeforeWritten) {
  Program p = small();
  std::swap(p.stages[3], p.stages[4]);
  EXPECT_TRUE(names(check(p), {"update grad_norm:", "reads 'w.grad' before"}));
  p = small();
  p.stages[3].uses[2].access = Access::Update;
  EXPECT_TRUE(names(check(p), {"wgrad mb0 head:", "reads 'w.grad' before"})) << "an update reads";
}

TEST(Check, HalfWrittenThroughViews) {
  Program p = small();
  p.stages.erase(p.stages.begin() + 1);
  EXPECT_TRUE(names(check(p), {"dgrad mb0 loss:", "reads 'y' before all of it is written"}));
  // One byte less than all.
  EXPECT_TRUE(
      names(check_with("value y[1] f32[4,4]", "value y[1] u8[63]"), {"dgrad mb0 loss:", "reads 'y' before"}));
  EXPECT_EQ(joined(check_with("value y[1] f32[4,4]", "value y[1] u8[64]")), "");
}

TEST(Check, WaitsForWhatComesBefore) {
  Program p = small();
  p.stages[4].after = {0, 3};
  EXPECT_EQ(joined(check(p)), "");
  for (const StageId wrong : {-1, 4, 99}) {
    p.stages[4].after = {0, wrong};
    EXPECT_TRUE(names(check(p), {"update grad_norm:", fmt::format("waits for stage {},", wrong)}));
  }
}

TEST(Check, NamesOfValuesSayTheirPlace) {
  Program p = small();
  Value& parts = p.values[static_cast<size_t>(id(p, "parts"))];
  parts.layer = 3;
  EXPECT_TRUE(names(check(p), {"value 'parts' is of microbatch -1 and layer 3, its name says -1 and -1"}));
  parts.name = "L3.parts";
  EXPECT_EQ(joined(check(p)), "");
  parts.microbatch = 1;
  EXPECT_TRUE(names(check(p), {"value 'L3.parts'", "its name says -1 and 3"}));
}

TEST(Check, ResultNeverWritten) {
  EXPECT_TRUE(names(check_with("value parts", "value extra f64[1] results result\nvalue parts"),
                    {"result 'extra' is never fully written"}));
}

TEST(Check, DuplicateNames) {
  Program p = small();
  p.values[static_cast<size_t>(id(p, "parts"))].name = "y";
  EXPECT_TRUE(names(check(p), {"value name 'y' is used twice"}));
  p = small();
  p.stages[1].part = 0;
  EXPECT_TRUE(names(check(p), {"fwd mb0 head:", "stage name is used twice"}));
  p = small();
  p.lanes[1].name = "compute";
  EXPECT_TRUE(names(check(p), {"lane name 'compute' is used twice"}));
}

TEST(Check, ViewsOutOfBounds) {
  EXPECT_TRUE(
      names(check_with("view=y+64", "view=y+65"), {"'y[1]'", "64 bytes from byte 65 of 'y', which has 128"}));
  EXPECT_TRUE(names(check_with("view=y+64", "view=y+-1"), {"'y[1]'", "from byte -1"}));
  EXPECT_TRUE(names(check_with("view=y+64", "view=y+9223372036854775807"), {"'y[1]'", "of 'y'"}));
  EXPECT_TRUE(names(check_with("view=y+64", "view=y[0]+0"), {"'y[1]' is a view of a view"}));
  Program p = small();
  p.values[static_cast<size_t>(id(p, "y[1]"))].view_of = static_cast<ValueId>(p.values.size());
  EXPECT_TRUE(names(check(p), {"'y[1]' views value", "does not come before it"}));
  EXPECT_TRUE(names(check_with("y[1] f32[4,4]", "y[1] f32[4,-4]"), {"'y[1]' has a negative dimension"}));
}

TEST(Check, UnknownLaneAttributesValue) {
  Program p = small();
  p.stages[1].lane = 2;
  EXPECT_TRUE(names(check(p), {"fwd mb0 head.1:", "lane 2 is not declared"}));
  p.stages[1].lane = -1;
  EXPECT_TRUE(names(check(p), {"fwd mb0 head.1:", "lane -1 is not declared"}));
  p = small();
  p.stages[1].attrs = 2;
  EXPECT_TRUE(names(check(p), {"fwd mb0 head.1:", "attribute set 2 does not exist"}));
  p = small();
  p.stages[1].uses[1].value = 999;
  EXPECT_TRUE(names(check(p), {"fwd mb0 head.1:", "value 999 does not exist"}));
}

TEST(Check, UpdateOfWhatCannotBeAccumulated) {
  EXPECT_TRUE(names(check_with("-> parts=parts", "-> parts+=parts"),
                    {"update grad_norm:", "'parts' cannot be accumulated into 'parts'"}));
}

TEST(Check, InPlaceMustUpdate) {
  Program p = small();
  p.stages[2].uses[3].access = Access::Write;
  EXPECT_TRUE(
      names(check(p), {"dgrad mb0 loss:", "'logits' is transformed in place", "'y' must be updated"}));
}

TEST(Check, CountsHostWaits) {
  const CheckReport report =
      check_with("update grad_norm", "update host_wait @compute : x=w.grad\nupdate grad_norm");
  EXPECT_EQ(joined(report), "");
  EXPECT_EQ(report.host_waits, 1);
}

TEST(Check, RequireOkPrintsFaultsWithInternalExitCode) {
  require_ok({}, "a program");
  CheckReport report;
  for (int i = 0; i < 25; ++i) report.faults.push_back("fault " + std::to_string(i));
  try {
    require_ok(report, "the step");
    FAIL() << "must throw";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ExitCode::Internal);
    const std::string text = error.what();
    EXPECT_NE(text.find("the step has 25 faults"), std::string::npos) << text;
    EXPECT_NE(text.find("fault 19\n  and 5 more"), std::string::npos) << text;
  }
}

TEST(Check, AKernelThatGetsAValueOfTheHostIsRefused) {
  Program p = parse(kSmall);
  for (Value& v : p.values)
    if (v.name == "labels") v.space = Space::Pinned;
  EXPECT_TRUE(names(check(p), {"loss", "'labels'", "must lie in space device", "pinned"}));
}

TEST(Check, AViewLiesWhereItsValueLies) {
  Program p = parse(kSmall);
  for (Value& v : p.values)
    if (v.name == "x[1]") v.space = Space::Pinned;
  EXPECT_TRUE(names(check(p), {"'x[1]'", "pinned", "device"}));
}

TEST(Check, ScratchIsAStagesOwn) {
  const std::string scratch = with(with(kSmall, "value parts", "value s u8[64] workspace step\nvalue parts"),
                                   "fwd mb0 head @compute", "fwd mb0 head @compute scratch=s");
  EXPECT_EQ(joined(check(parse(scratch))), "");
  EXPECT_TRUE(
      names(check(parse(with(scratch, "wgrad mb0 head @compute", "wgrad mb0 head @compute scratch=s"))),
            {"wgrad mb0 head:", "scratch 's' is that of fwd mb0 head"}));
  EXPECT_TRUE(names(check(parse(with(scratch, "scratch=s", "scratch=w"))),
                    {"fwd mb0 head:", "scratch 'w' must be a value of the step on the device"}));
  EXPECT_TRUE(names(check(parse(with(scratch, "scratch=s", "scratch=y[1]"))), {"scratch 'y[1]'", "no view"}));
  EXPECT_TRUE(names(check(parse(with(scratch, "scratch=s", "scratch=parts"))),
                    {"update grad_norm:", "uses 'parts', the scratch of fwd mb0 head"}));
  Program p = small();
  p.stages[0].scratch = 1000;
  EXPECT_TRUE(names(check(p), {"fwd mb0 head:", "value 1000 does not exist"}));
}

}  // namespace
}  // namespace pleat::interpret
