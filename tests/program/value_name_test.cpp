// Names of values: what the builder writes is read back, and nothing else is taken for a place.
#include "program/value_name.h"

#include <gtest/gtest.h>

namespace pleat::program {
namespace {

TEST(ValueName, IsReadBack) {
  for (const int microbatch : {-1, 0, 12})
    for (const int layer : {-1, 0, 61})
      for (const int chunk : {-1, 0, 3}) {
        if (chunk >= 0 && microbatch < 0) continue;
        const ValueName name = tagged("d_x.again", microbatch, layer, chunk);
        const NameParts parts = read_name(name.text);
        EXPECT_EQ(parts.microbatch, microbatch) << name.text;
        EXPECT_EQ(parts.layer, layer) << name.text;
        EXPECT_EQ(parts.what, "d_x.again") << name.text;
        EXPECT_EQ(name.microbatch, microbatch);
        EXPECT_EQ(name.layer, layer);
      }
  EXPECT_EQ(tagged("x_out", 3, 8).text, "mb3.L8.x_out");
  EXPECT_EQ(tagged("x_in", 0, -1, 1).text, "mb0.c1.x_in");
  EXPECT_EQ(tagged("load", -1, 8).text, "L8.load");
}

TEST(ValueName, ParametersBelongToTheirLayer) {
  const NameParts parts = read_name("layers.8.attn.qkv.weight.grad");
  EXPECT_EQ(parts.layer, 8);
  EXPECT_EQ(parts.microbatch, -1);
  EXPECT_EQ(parts.what, "attn.qkv.weight.grad");
  EXPECT_EQ(read_name("mb0.logits[3]").what, "logits") << "rows are no part of what it is";
}

TEST(ValueName, OtherNamesSayNothing) {
  for (const char* name : {"loss", "mb", "mb0", "mb0.", "L1", "mbx.y", "mb-1.y", "L.x", "layers.attn.x",
                           "layers", "c0", "bucket3.grads", "mb99999999999.x", "Lx.1", ""}) {
    const NameParts parts = read_name(name);
    EXPECT_EQ(parts.microbatch, -1) << name;
    EXPECT_EQ(parts.layer, -1) << name;
    EXPECT_EQ(parts.what, name);
  }
}

}  // namespace
}  // namespace pleat::program
