// Weights stored as codes and scales: every code and scale against the formula of its format, blocks that are cut
// off, any piece of a tensor, and what is refused. tests/exchange/quantized_test.cpp has another implementation's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "safetensors/convert.h"
#include "safetensors/model_folder.h"
#include "safetensors/safetensors_support.h"
#include "safetensors/writer.h"

namespace pleat::safetensors {
namespace {

using Bytes = std::vector<std::byte>;

struct Made {
  TensorSpec spec;
  Bytes bytes;
};

Bytes bytes_of(const std::vector<float>& numbers, ElementType type = ElementType::F32) {
  Bytes out(numbers.size() * static_cast<size_t>(size_of(type)));
  encode(type, std::span<const float>(numbers), out);
  return out;
}

Bytes random_codes(Random& random, int64_t count, bool nan_allowed = true) {
  Bytes out;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t code = random.below(256);
    while (!nan_allowed && (code & 0x7F) == 0x7F) code = random.below(256);
    out.push_back(static_cast<std::byte>(code));
  }
  return out;
}

// 1 sign, 4 exponent bits with bias 7, 3 of fraction; all ones is NaN.
double e4m3(std::byte byte) {
  const int code = std::to_integer<int>(byte), exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7F) == 0x7F) return std::nan("");
  const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -size : size;
}

double e2m1(int code) {
  constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kSizes[code & 7] : kSizes[code & 7];
}

class Quantized : public ::testing::Test {
 protected:
  static constexpr const char* kFp8 = R"("quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic")";

  void config(const std::string& quantization) {
    write_file(folder.at("config.json"), "{\"quantization_config\":{" + quantization + "}}");
  }
  void fp8_config(int rows, int columns, const std::string& more = "") {
    config(fmt::format("{},\"weight_block_size\":[{},{}]{}", kFp8, rows, columns, more));
  }
  void weights(const std::vector<Made>& made, const std::string& file = kSingleFileName) {
    std::vector<TensorSpec> specs;
    for (const Made& m : made) specs.push_back(m.spec);
    Writer writer(folder.at(file), specs);
    for (const Made& m : made) writer.append(m.spec.name, m.bytes);
    writer.finish();
  }
  ModelFolder open() { return ModelFolder::open(folder.path()); }
  Bytes read(const ModelFolder& model, const std::string& name) {
    Bytes out(static_cast<size_t>(model.at(name).num_bytes()));
    model.read(name, out);
    return out;
  }
  // The same bytes, whatever pieces they are read in.
  void expect_pieces(const ModelFolder& model, const std::string& name) {
    const Bytes whole = read(model, name);
    Random random(7);
    for (int i = 0; i < 40; ++i) {
      const uint64_t begin = random.below(whole.size()), count = random.below(whole.size() - begin + 1);
      Bytes piece(count);
      model.read(name, static_cast<int64_t>(begin), piece);
      EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
    Bytes one(1);
    EXPECT_REFUSED(model.read(name, static_cast<int64_t>(whole.size()), one), "reach beyond");
    EXPECT_REFUSED(model.read(name, -1, one), "reach beyond");
    EXPECT_REFUSED(model.read(name, one), "room for 1 was given");
    EXPECT_GT(model.piece_bytes(name), 0);
  }

  TemporaryFolder folder;
};

// One after the other into one folder: everything that is decoded is refused where it is broken.
struct Fp8Case {
  std::vector<int64_t> shape;
  int rows, columns;
  ElementType scale_type = ElementType::F32;
};

Made fp8_codes(Random& random, const Fp8Case& c) {
  int64_t count = 1;
  for (const int64_t d : c.shape) count *= d;
  return {{"a.weight", ElementType::F8E4M3, c.shape}, random_codes(random, count, false)};
}

Made fp8_scales(Random& random, const Fp8Case& c) {
  std::vector<int64_t> shape = c.shape;
  int64_t count = 1;
  shape[shape.size() - 2] = (shape[shape.size() - 2] + c.rows - 1) / c.rows;
  shape.back() = (shape.back() + c.columns - 1) / c.columns;
  for (const int64_t d : shape) count *= d;
  std::vector<float> scales;
  for (int64_t i = 0; i < count; ++i)
    scales.push_back(std::ldexp(1 + static_cast<float>(random.below(1 << 20)) / (1 << 20),
                                -static_cast<int>(random.below(12))));
  return {{"a.weight_scale_inv", c.scale_type, shape}, bytes_of(scales, c.scale_type)};
}

TEST_F(Quantized, Fp8IsCodeTimesTheScaleOfItsBlock) {
  Random random(1);
  for (const Fp8Case& c :
       {Fp8Case{{256, 256}, 128, 128}, Fp8Case{{200, 300}, 128, 128}, Fp8Case{{1, 1}, 128, 128},
        Fp8Case{{64, 129}, 64, 64}, Fp8Case{{30, 50}, 7, 16}, Fp8Case{{40, 130}, 128, 128, ElementType::BF16},
        Fp8Case{{3, 130, 20}, 128, 8}, Fp8Case{{5, 9}, 65536, 1}}) {
    std::filesystem::remove(folder.at(kSingleFileName));
    fp8_config(c.rows, c.columns);
    const Made codes = fp8_codes(random, c), scales = fp8_scales(random, c);
    weights({codes, scales, {{"b.weight", ElementType::BF16, {2}}, Bytes(4)}});
    const ModelFolder model = open();
    EXPECT_EQ(model.names(), (std::vector<std::string_view>{"a.weight", "b.weight"}));
    EXPECT_TRUE(model.is_quantized("a.weight") && !model.is_quantized("b.weight"));
    EXPECT_EQ(model.num_quantized(), 1);
    EXPECT_EQ(model.at("a.weight").type, ElementType::F32);
    EXPECT_EQ(model.at("a.weight").shape, c.shape);
    EXPECT_EQ(model.find("a.weight_scale_inv"), nullptr);

    std::vector<float> scale(scales.bytes.size() / static_cast<size_t>(size_of(c.scale_type)));
    decode(c.scale_type, scales.bytes, std::span(scale));
    const int64_t rows = c.shape[c.shape.size() - 2], columns = c.shape.back();
    const int64_t scale_rows = scales.spec.shape[c.shape.size() - 2],
                  scale_columns = scales.spec.shape.back();
    const Bytes found = read(model, "a.weight");
    for (int64_t i = 0; i < std::ssize(codes.bytes); ++i) {
      const int64_t matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
      const float s = scale[static_cast<size_t>((matrix * scale_rows + row / c.rows) * scale_columns +
                                                column / c.columns)];
      const auto needed = static_cast<float>(e4m3(codes.bytes[static_cast<size_t>(i)])) * s;
      ASSERT_EQ(0, std::memcmp(&needed, found.data() + 4 * i, 4)) << i;  // -0 too
    }
    expect_pieces(model, "a.weight");
  }
}

TEST_F(Quantized, Fp8MayLieInSeveralFiles) {
  Random random(2);
  const Fp8Case c{{20, 30}, 8, 8};
  const Made codes = fp8_codes(random, c), scales = fp8_scales(random, c);
  fp8_config(8, 8);
  weights({codes, scales});
  const Bytes whole = read(open(), "a.weight");
  std::filesystem::remove(folder.at(kSingleFileName));
  weights({codes}, "s1.safetensors");
  weights({scales}, "s2.safetensors");
  write_file(folder.at(kIndexFileName),
             R"({"weight_map":{"a.weight":"s1.safetensors","a.weight_scale_inv":"s2.safetensors"}})");
  ModelFolder opened = open();
  const ModelFolder moved = std::move(opened);
  EXPECT_EQ(read(moved, "a.weight"), whole);
  EXPECT_EQ(moved.total_bytes(), 20 * 30 + 3 * 4 * 4);
}

TEST_F(Quantized, Mxfp4IsTransposedAndExact) {
  Random random(3);
  config(R"("quant_method":"mxfp4")");
  for (const auto& [experts, rows, groups] :
       {std::array<int64_t, 3>{1, 1, 1}, {3, 40, 2}, {2, 64, 5}, {1, 33, 3}}) {
    std::filesystem::remove(folder.at(kSingleFileName));
    const Made codes{{"x.down_proj_blocks", ElementType::U8, {experts, rows, groups, 16}},
                     random_codes(random, experts * rows * groups * 16)};
    Made scales{{"x.down_proj_scales", ElementType::U8, {experts, rows, groups}}, {}};
    for (int64_t i = 0; i < experts * rows * groups; ++i)
      scales.bytes.push_back(static_cast<std::byte>(random.below(253)));  // from the smallest on
    weights({codes, scales});
    const ModelFolder model = open();
    EXPECT_EQ(model.names(), std::vector<std::string_view>{"x.down_proj"});
    EXPECT_EQ(model.at("x.down_proj").type, ElementType::BF16);
    EXPECT_EQ(model.at("x.down_proj").shape, (std::vector<int64_t>{experts, groups * 32, rows}));
    const Bytes found = read(model, "x.down_proj");
    std::vector<double> numbers(found.size() / 2);
    decode(ElementType::BF16, found, std::span(numbers));
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t c = 0; c < groups * 32; ++c)
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t group = (e * rows + r) * groups + c / 32;
          const int two = std::to_integer<int>(codes.bytes[static_cast<size_t>(group * 16 + c % 32 / 2)]);
          const double needed =
              std::ldexp(e2m1(c % 2 ? two >> 4 : two & 15),
                         std::to_integer<int>(scales.bytes[static_cast<size_t>(group)]) - 127);
          const double number = numbers[static_cast<size_t>((e * groups * 32 + c) * rows + r)];
          ASSERT_EQ(number, needed);
          ASSERT_EQ(std::signbit(number), std::signbit(needed));
        }
    expect_pieces(model, "x.down_proj");
  }
}

TEST_F(Quantized, WhatIsNoNumberIsNamed) {
  fp8_config(2, 2);
  const auto fp8 = [&](int code, float scale, ElementType type = ElementType::F32) {
    std::filesystem::remove(folder.at(kSingleFileName));
    Bytes codes(12, std::byte{0x38});
    codes[7] = static_cast<std::byte>(code);
    weights({{{"a.weight", ElementType::F8E4M3, {3, 4}}, codes},
             {{"a.weight_scale_inv", type, {2, 2}}, bytes_of({1, scale, 1, 1}, type)}});
    return refusal([&] { read(open(), "a.weight"); });
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(fp8(0x7F, 1), "tensor 'a.weight' holds the code of NaN at [1, 3]; finite weights are needed");
  expect(fp8(0xFF, 1), "tensor 'a.weight' holds the code of NaN at [1, 3]; finite weights are needed");
  expect(fp8(0x38, std::nanf("")),
         "tensor 'a.weight_scale_inv' holds nan as scale 1 of [2, 2]; finite scales");
  expect(fp8(0x38, INFINITY, ElementType::BF16), "tensor 'a.weight_scale_inv' holds inf as scale 1");
  expect(fp8(0x7E, 3e38f), "tensor 'a.weight': the code at [1, 3] times its scale is not finite");

  config(R"("quant_method":"mxfp4")");
  const auto mxfp4 = [&](int codes, int scale) {
    std::filesystem::remove(folder.at(kSingleFileName));
    Bytes blocks(2 * 3 * 16), scales(2 * 3, std::byte{127});
    blocks[4 * 16 + 3] = static_cast<std::byte>(codes);
    scales[4] = static_cast<std::byte>(scale);
    weights({{{"x_blocks", ElementType::U8, {1, 2, 3, 16}}, blocks},
             {{"x_scales", ElementType::U8, {1, 2, 3}}, scales}});
    return testing::message_of([&] { read(open(), "x"); });
  };
  expect(mxfp4(0, 255),
         "tensor 'x_scales' holds 255, which is NaN, as the scale at [0, 1, 1]; finite scales");
  expect(mxfp4(0xC0, 254),
         "tensor 'x_blocks': a code of the block at [0, 1, 1] times its scale 2^127 is too large");
  EXPECT_EQ(mxfp4(0xBB, 254), "");  // 1.5 2^127
}

TEST_F(Quantized, TensorsThatDoNotBelongTogetherAreRefused) {
  const auto expect = [&](const std::vector<Made>& made, const std::string& part) {
    std::filesystem::remove(folder.at(kSingleFileName));
    weights(made);
    EXPECT_REFUSED(open(), part);
  };
  const Made codes{{"a.weight", ElementType::F8E4M3, {3, 4}}, Bytes(12)};
  const auto scales = [](std::vector<int64_t> shape, ElementType type = ElementType::F32) {
    int64_t count = size_of(type);
    for (const int64_t d : shape) count *= d;
    return Made{{"a.weight_scale_inv", type, std::move(shape)}, Bytes(static_cast<size_t>(count))};
  };
  fp8_config(2, 2);
  expect({codes},
         "tensor 'a.weight' holds codes of fp8, but there is no tensor 'a.weight_scale_inv' with its scales");
  expect({scales({2, 2})},
         "tensor 'a.weight_scale_inv' holds scales of fp8, but there is no tensor 'a.weight' with its codes");
  expect({codes, scales({2, 1})},
         "tensor 'a.weight_scale_inv' is F32 [2, 1]; needed is F32 or BF16 [2, 2], a scale for each 2 x 2 "
         "block of "
         "the codes, which are [3, 4]");
  expect({codes, scales({4})}, "'a.weight_scale_inv' is F32 [4]; needed is F32 or BF16 [2, 2]");
  expect({codes, scales({})}, "'a.weight_scale_inv' is F32 []; needed");
  expect({codes, scales({2, 2}, ElementType::F16)}, "is F16 [2, 2]; needed is F32 or BF16");
  expect({{{"a.weight", ElementType::F8E4M3, {4}}, Bytes(4)}, scales({2})},
         "tensor 'a.weight' has codes of shape [4]; needed is a matrix");
  expect({{{"a.weight", ElementType::F8E5M2, {3, 4}}, Bytes(12)}, scales({2, 2})},
         "tensor 'a.weight' is F8_E5M2; fp8 weights are read as F8_E4M3");
  expect({{{"a.weight", ElementType::BF16, {3, 4}}, Bytes(24)}, scales({2, 2})},
         "tensor 'a.weight' is BF16, but there are scales for it ('a.weight_scale_inv'); needed is F8_E4M3");

  config(R"("quant_method":"mxfp4")");
  const Made blocks{{"x_blocks", ElementType::U8, {1, 2, 3, 16}}, Bytes(96)};
  const Made good{{"x_scales", ElementType::U8, {1, 2, 3}}, Bytes(6)};
  expect({blocks},
         "tensor 'x_blocks' holds codes of mxfp4, but there is no tensor 'x_scales' with its scales");
  expect({good}, "tensor 'x_scales' holds scales of mxfp4, but there is no tensor 'x_blocks' with its codes");
  expect(
      {blocks, {{"x_scales", ElementType::U8, {1, 3, 2}}, Bytes(6)}},
      "tensor 'x_scales' is U8 [1, 3, 2]; needed is U8 [1, 2, 3], a scale for each 16 bytes of 'x_blocks'");
  expect({blocks, {{"x_scales", ElementType::F32, {1, 2, 3}}, Bytes(24)}},
         "'x_scales' is F32 [1, 2, 3]; needed is U8");
  expect({{{"x_blocks", ElementType::U8, {1, 2, 4, 8}}, Bytes(64)}, good},
         "tensor 'x_blocks' is U8 [1, 2, 4, 8]; needed are codes of mxfp4, U8 [experts, rows, groups, 16]");
  expect({{{"x_blocks", ElementType::U8, {2, 3, 16}}, Bytes(96)}, good},
         "'x_blocks' is U8 [2, 3, 16]; needed");
  expect({blocks, good, {{"x", ElementType::BF16, {1}}, Bytes(2)}},
         "tensor 'x' is stored as numbers and as codes");
}

TEST_F(Quantized, EmptyTensorsAreNoTrouble) {
  fp8_config(128, 128);
  weights({{{"a.weight", ElementType::F8E4M3, {0, 5}}, {}},
           {{"a.weight_scale_inv", ElementType::F32, {0, 1}}, {}},
           {{"b.weight", ElementType::F8E4M3, {3, 0}}, {}},
           {{"b.weight_scale_inv", ElementType::F32, {1, 0}}, {}}});
  const ModelFolder model = open();
  EXPECT_EQ(read(model, "a.weight").size() + read(model, "b.weight").size(), 0u);
  EXPECT_GT(model.piece_bytes("a.weight"), 0);
  config(R"("quant_method":"mxfp4")");
  std::filesystem::remove(folder.at(kSingleFileName));
  weights({{{"x_blocks", ElementType::U8, {0, 2, int64_t{1} << 53, 16}}, {}},
           {{"x_scales", ElementType::U8, {0, 2, int64_t{1} << 53}}, {}}});
  EXPECT_EQ(read(open(), "x").size(), 0u);
}

TEST_F(Quantized, WhatConfigSaysOtherwiseIsTold) {
  const Made a{{"model.layers.0.up.weight", ElementType::F8E4M3, {2, 2}}, Bytes(4)};
  const Made scales{{"model.layers.0.up.weight_scale_inv", ElementType::F32, {1, 1}}, bytes_of({1})};
  weights({a, scales});
  for (const auto& [list, told] : std::map<std::string, bool>{{R"(["lm_head"])", false},
                                                              {R"(["model.layers.0"])", true},
                                                              {R"(["model.layers.0.u"])", false},
                                                              {R"(["model.layers.*.up"])", true},
                                                              {R"(["model.layers.*.down"])", false},
                                                              {R"(["re:.*", "model.*.0", ""])", true},
                                                              {R"(["*layers.0"])", true},
                                                              {R"(["model.layers.0.up.weight"])", true},
                                                              {R"(["layers.0"])", false},
                                                              {R"(["model.layers.0.up."])", false},
                                                              {R"(["layers.1.up", "up"])", true},
                                                              {"null", false}}) {
    for (const char* key : {"modules_to_not_convert", "ignored_layers"}) {
      fp8_config(128, 128, fmt::format(",\"{}\":{}", key, list));
      const std::vector<std::string> warnings = open().warnings();
      ASSERT_EQ(warnings.size(), told ? 1u : 0u) << list;
      if (!told) continue;
      EXPECT_NE(
          warnings[0].find("1 tensor(s) are stored as codes though modules_to_not_convert of config.json "
                           "names them, and are dequantized like the others, the first: "
                           "'model.layers.0.up.weight'"),
          std::string::npos)
          << warnings[0];
    }
  }
  fp8_config(128, 128);
  std::filesystem::remove(folder.at(kSingleFileName));
  weights({{{"a.weight", ElementType::BF16, {1}}, Bytes(2)}});
  ASSERT_EQ(open().warnings().size(), 1u);
  EXPECT_NE(open().warnings()[0].find(
                "says that weights are stored as fp8 with a scale for each 128 x 128 weights, "
                "but none is"),
            std::string::npos);
}

TEST_F(Quantized, OtherWaysAreRefusedByName) {
  weights({{{"a.weight", ElementType::BF16, {1}}, Bytes(2)}});
  for (const char* method :
       {"gptq", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "nvfp4", "torchao"}) {
    config(fmt::format("\"quant_method\":\"{}\"", method));
    EXPECT_REFUSED(open(),
                   fmt::format("weights quantized by '{}' are not read; read are \"fp8\" (E4M3", method));
  }
  config(R"("quant_method":"fp8","activation_scheme":"static")");
  EXPECT_REFUSED(open(),
                 "quantization_config.activation_scheme = 'static' is not read; needed is \"dynamic\"");
  config(R"("quant_method":"fp8","fmt":"e5m2")");
  EXPECT_REFUSED(open(), "quantization_config.fmt = 'e5m2' is not read; needed is \"e4m3\"");
  config(R"("quant_method":"fp8","expert_dtype":"fp4")");
  EXPECT_REFUSED(open(), "quantization_config.expert_dtype = 'fp4' is not read; needed is \"fp8\"");
  for (const char* size : {"", R"(,"weight_block_size":null)"}) {
    config(kFp8 + std::string(size));
    EXPECT_REFUSED(open(),
                   "has no weight_block_size: fp8 with one scale for a whole tensor or row is not read");
  }
  for (const char* size :
       {"[128]", "[0,128]", "[128,-1]", "[128,1.5]", "[128,65537]", "128", "[128,\"128\"]"}) {
    config(fmt::format("{},\"weight_block_size\":{}", kFp8, size));
    EXPECT_REFUSED(open(), "needed are two whole numbers from 1 to 65536, rows and columns");
  }
  fp8_config(128, 128, R"(,"modules_to_not_convert":"lm_head")");
  EXPECT_REFUSED(open(), "modules_to_not_convert must be a list of at most 4096 names");
  fp8_config(128, 128, R"(,"ignored_layers":[1])");
  EXPECT_REFUSED(open(), "ignored_layers must be a list of at most 4096 names");
  config("");
  EXPECT_REFUSED(open(), "quantization_config has no quant_method; read are");
  write_file(folder.at("config.json"), R"({"quantization_config":7})");
  EXPECT_REFUSED(open(), "quantization_config is '7'; an object is needed");
  write_file(folder.at("config.json"), R"({"compression_config":{}})");
  EXPECT_REFUSED(open(), "compression_config (compressed-tensors) is not read");
  write_file(folder.at("config.json"), R"({"quantization_config":)");
  EXPECT_REFUSED(open(), "config.json: broken JSON");
  write_file(folder.at("config.json"), R"({"quantization_config":null})");
  EXPECT_TRUE(open().scheme().is_plain());
  std::filesystem::remove(folder.at("config.json"));
  EXPECT_TRUE(open().scheme().is_plain());
}

}  // namespace
}  // namespace pleat::safetensors
