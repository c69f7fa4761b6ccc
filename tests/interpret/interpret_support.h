// Programs small enough to read, and checks of faults by their text.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "interpret/check/check.h"
#include "interpret/print/print.h"
#include "program/builder.h"
#include "support/files.h"

namespace pleat::interpret {

// One linear layer, its loss and its update: valid, and touching every kind of value.
inline const std::string kSmall = R"(program small
lane compute compute
lane side compute
attrs 1 clip=1
value w f32[4,4] weights persistent
value w.moment1 f32[4,4] optimizer persistent
value w.moment2 f32[4,4] optimizer persistent
value x f32[8,4] inputs input
value labels i32[8] inputs input
value mask u8[8] inputs input
value norm f64[4] inputs input
value hyper f64[4] inputs input
value loss f64[2] results result
value grad_scale f64[2] results result
value commit i32[1] results result
value y f32[8,4] activations step
value y[0] f32[4,4] activations step view=y+0
value y[1] f32[4,4] activations step view=y+64
value x[0] f32[4,4] inputs input view=x+0
value x[1] f32[4,4] inputs input view=x+64
value w.grad f32[4,4] gradients step
value parts f64[1] workspace step
fwd mb0 head @compute : x=x[0] w=w -> y=y[0]
fwd mb0 head.1 @side : x=x[1] w=w -> y=y[1]
dgrad mb0 loss @compute : labels=labels mask=mask norm=norm -> logits+=y loss=loss
wgrad mb0 head @compute : dy=y x=x -> dw=w.grad
update grad_norm @compute : g=w.grad -> parts=parts
update clip @compute attrs=1 : parts=parts loss=loss -> grad_scale=grad_scale commit=commit
update adamw @compute : g=w.grad hyper=hyper grad_scale=grad_scale commit=commit -> w+=w m+=w.moment1 v+=w.moment2
)";

inline std::string golden_path() {
  return std::string(PLEAT_SOURCE_DIR) + "/tests/interpret/golden/tiny_train.txt";
}

// A real training step of two layers, kept as text.
inline std::string golden_text() { return testing::read_file(golden_path()); }

inline std::string joined(const CheckReport& report) {
  std::string out;
  for (const std::string& fault : report.faults) out += fault + "\n";
  return out;
}

// At least one fault holds every one of the given words.
inline ::testing::AssertionResult names(const CheckReport& report, const std::vector<std::string>& words) {
  for (const std::string& fault : report.faults) {
    bool all = true;
    for (const std::string& word : words) all &= fault.find(word) != std::string::npos;
    if (all) return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "no fault names all of it; faults are:\n" << joined(report);
}

inline std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << "'" << from << "' is not in the text";
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace pleat::interpret
