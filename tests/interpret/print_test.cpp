// The text form: exact round trip, errors that name the line, and no text that crashes the parser.
#include "interpret/print/print.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "interpret/interpret_support.h"
#include "program/brute_order.h"
#include "support/refusal.h"

namespace pleat::interpret {
namespace {

using namespace program;

std::string refusal(const std::string& text) {
  return testing::message_of(base::ExitCode::BadInput, [&] { parse(text); });
}

TEST(Print, SmallAndGoldenAreFixedPoints) {
  EXPECT_EQ(print(parse(kSmall)), kSmall);
  const std::string golden = golden_text();
  EXPECT_EQ(print(parse(golden)), golden);
}

TEST(Print, EveryFieldSurvives) {
  Program p = parse(kSmall);
  p.attrs.push_back({{"eps", 1e-5}, {"exact", 9007199254740992.0}, {"scale", 0.1}, {"tiny", -4.9e-324}});
  Stage& s = p.stages[1];
  s.model = 3, s.chunk = 2, s.layer = 7, s.part = 12, s.replay = 1, s.attrs = 2;
  s.group = Group::ExpertData, s.peer = Peer::Previous, s.scratch = 17;
  p.values[3].space = Space::Pinned;
  p.values[11].expected_rows = 5, p.values[11].maximum_rows = 8;
  p.stages[3].after = {0}, p.stages[4].after = {0, 1, 3};
  Value scalar;
  scalar.name = "scalar";
  scalar.dtype = tensor::Dtype::I64;
  p.values.push_back(scalar);
  for (const ValueName& name : {tagged("rows", 3, 8), tagged("x_in", 0, -1, 1), tagged("load", -1, 2),
                                ValueName("layers.4.w", -1, 4)}) {
    Value v;
    v.name = name.text, v.microbatch = name.microbatch, v.layer = name.layer;
    p.values.push_back(v);
  }
  p.values.push_back(scalar), p.values.back().name = "last";
  EXPECT_EQ(parse(print(p)), p) << print(p);
  EXPECT_NE(print(p).find("update grad_norm @compute after=fwd,mb0,head "
                          "after=fwd,model3,mb0,c2,L7,head.12,(replay) after=wgrad,mb0,head :"),
            std::string::npos)
      << print(p);
  EXPECT_NE(print(p).find(" scratch=parts :"), std::string::npos) << print(p);
  for (int g = 0; g <= static_cast<int>(Group::World); ++g)
    for (int q = 0; q <= static_cast<int>(Peer::Previous); ++q) {
      s.group = static_cast<Group>(g), s.peer = static_cast<Peer>(q);
      ASSERT_EQ(parse(print(p)), p);
    }
  for (int space = 0; space <= static_cast<int>(Space::Pinned); ++space)
    for (int owner = 0; owner <= static_cast<int>(Owner::Results); ++owner)
      for (int life = 0; life <= static_cast<int>(Life::Persistent); ++life) {
        Value& v = p.values.back();
        v.space = static_cast<Space>(space), v.owner = static_cast<Owner>(owner),
        v.life = static_cast<Life>(life);
        ASSERT_EQ(parse(print(p)), p);
      }
}

TEST(Print, RandomProgramsComeBack) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Program p = random_program(seed, 30);
    ASSERT_EQ(parse(print(p)), p);
  }
}

TEST(Parse, CommentsAndSpacesDoNotMatter) {
  std::string text = "# a step\n\n  program   small  # its name\r\n" + kSmall.substr(kSmall.find('\n') + 1);
  EXPECT_EQ(parse(text), parse(kSmall));
  text.pop_back();
  EXPECT_EQ(parse(text), parse(kSmall)) << "the last line needs no end";
}

TEST(Parse, ErrorsNameTheLineAndWhatWasExpected) {
  const std::string head = "program p\nlane compute compute\nvalue x f32[2] activations step\n";
  const auto line4 = [&](const std::string& line) { return refusal(head + line); };
  EXPECT_EQ(refusal(""), "empty program text; it must begin with 'program NAME'");
  EXPECT_EQ(refusal("lane a b"), "program text line 1: needed 'program NAME' on the first line, got 'lane'");
  EXPECT_EQ(refusal("program"), "program text line 1: needed a program name, got 'the end of the line'");
  EXPECT_EQ(refusal("program p q"), "program text line 1: needed the end of the line, got 'q'");
  EXPECT_EQ(line4("lane side"), "program text line 4: needed a resource, got 'the end of the line'");
  EXPECT_EQ(line4("attrs 2 a=1"), "program text line 4: needed attribute set 1, got '2'");
  EXPECT_EQ(line4("attrs 1 a"), "program text line 4: needed key=number, got 'a'");
  EXPECT_EQ(line4("attrs 1 a=b"), "program text line 4: needed a number, got 'b'");
  EXPECT_EQ(line4("value y f16[2] activations step"),
            "program text line 4: needed a dtype (u8 i32 i64 f32 f64 bf16 i16 e4m3 e8m0 e2m1), got 'f16[2]'");
  EXPECT_EQ(line4("value y f32 activations step"), "program text line 4: needed dtype[dims], got 'f32'");
  EXPECT_EQ(line4("value y f32[2,] activations step"),
            "program text line 4: needed a dimension behind ',', got 'f32[2,]'");
  EXPECT_EQ(line4("value y f32[2x] activations step"), "program text line 4: needed a dimension, got '2x'");
  EXPECT_EQ(line4("value y f32[2] nobody step"), "program text line 4: needed an owner, got 'nobody'");
  EXPECT_EQ(line4("value y f32[2] weights never"), "program text line 4: needed a life, got 'never'");
  EXPECT_EQ(line4("value x f32[2] weights step"), "program text line 4: needed a new value name, got 'x'");
  EXPECT_EQ(line4("value y f32[2] weights step view=z+0"),
            "program text line 4: needed a declared value, got 'z'");
  EXPECT_EQ(line4("value y f32[2] weights step view=x"),
            "program text line 4: needed view=NAME+BYTES, got 'x'");
  EXPECT_EQ(line4("value y f32[2] weights step rows=3"),
            "program text line 4: needed rows=EXPECTED/MAXIMUM, got '3'");
  EXPECT_EQ(line4("value y f32[2] weights step space=moon"),
            "program text line 4: needed a space, got 'moon'");
  EXPECT_EQ(line4("value y f32[2] weights step colour=red"),
            "program text line 4: needed space=, view=, scale_of= or rows=, got 'colour=red'");
  EXPECT_EQ(line4("forward copy"),
            "program text line 4: needed program, lane, attrs, repeat, value or a phase, got 'forward'");
  EXPECT_EQ(line4("fwd mb0"), "program text line 4: needed an operation, got 'the end of the line'");
  EXPECT_EQ(line4("fwd mb99999999999 head @compute :"),
            "program text line 4: needed a number, got '99999999999'");
  EXPECT_EQ(line4("fwd mb0 heed @compute :"), "program text line 4: needed an operation, got 'heed'");
  EXPECT_EQ(line4("fwd mb0 head.x @compute :"), "program text line 4: needed a part number, got 'x'");
  EXPECT_EQ(line4("fwd mb0 head @nowhere :"), "program text line 4: needed a declared lane, got 'nowhere'");
  EXPECT_EQ(line4("fwd mb0 head : x=x"), "program text line 4: needed @LANE, got ':'");
  EXPECT_EQ(line4("fwd mb0 head @compute"), "program text line 4: needed ':', got 'the end of the line'");
  EXPECT_EQ(line4("fwd mb0 head @compute attrs=1 :"),
            "program text line 4: needed a declared attribute set, got '1'");
  EXPECT_EQ(line4("fwd mb0 head @compute group=us :"), "program text line 4: needed a group, got 'us'");
  EXPECT_EQ(line4("fwd mb0 head @compute peer=me :"), "program text line 4: needed a peer, got 'me'");
  EXPECT_EQ(line4("fwd mb0 head @compute : y"), "program text line 4: needed argument=value, got 'y'");
  EXPECT_EQ(line4("fwd mb0 head @compute : q=x"),
            "program text line 4: needed an argument of fwd head, got 'q'");
  EXPECT_EQ(line4("fwd mb0 head @compute : x=z"), "program text line 4: needed a declared value, got 'z'");
  EXPECT_EQ(line4("fwd mb0 head @compute : x=x x=x"),
            "program text line 4: needed each argument once, got 'x'");
}

// Whatever comes in: a program (whose own text then comes back exactly) or an error.
void survives(const std::string& text) {
  try {
    const Program p = parse(text);
    const Program again = parse(print(p));
    // A nan is not equal to itself.
    ASSERT_TRUE(again == p || again.attrs != p.attrs) << text;
    check(p);
  } catch (const base::Error&) {
  }
}

TEST(Parse, TruncationsNeverCrash) {
  for (size_t n = 0; n <= kSmall.size(); ++n) survives(kSmall.substr(0, n));
}

TEST(Parse, RandomDamageNeverCrashes) {
  std::mt19937 random(7);
  const std::string bytes = std::string("\0\n\r\t #=+-:@.[],0129aLmbx?!\xff", 27);
  for (int round = 0; round < 3000; ++round) {
    std::string text = kSmall;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = bytes[random() % bytes.size()];
          break;
        case 1:
          text.insert(at, 1, bytes[random() % bytes.size()]);
          break;
        case 2:
          text.erase(at, 1 + random() % 9);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
          break;
      }
    }
    survives(text);
  }
  for (int round = 0; round < 500; ++round) {
    std::string text = "program p\n";
    for (size_t n = random() % 200; n > 0; --n) text += static_cast<char>(random());
    survives(text);
  }
}

}  // namespace
}  // namespace pleat::interpret
