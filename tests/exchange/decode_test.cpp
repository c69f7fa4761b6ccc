// The families' small models over a cache: the logits another implementation computed for the whole sequence.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "exchange/exchange_support.h"
#include "exchange/model_source.h"
#include "infer/next_token.h"
#include "safetensors/convert.h"
#include "safetensors/file.h"

namespace pleat::exchange::testing {
namespace {

class DecodeGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(DecodeGolden, CachedLogitsEqualTheOtherImplementation) {
  const std::string folder = golden_folder(GetParam());
  const safetensors::File golden = safetensors::File::open(folder + "/golden.safetensors");
  const safetensors::TensorInfo& ids = golden.at("input_ids");
  const int64_t B = ids.shape[0], S = ids.shape[1];
  std::vector<std::byte> raw(static_cast<size_t>(ids.num_bytes()));
  golden.read("input_ids", raw);
  std::vector<std::vector<int32_t>> tokens(static_cast<size_t>(B));
  for (int64_t i = 0; i < B * S; ++i) {
    int64_t id = 0;
    std::memcpy(&id, raw.data() + i * 8, 8);
    tokens[size_t(i / S)].push_back(static_cast<int32_t>(id));
  }
  const safetensors::TensorInfo& info = golden.at("logits");
  raw.resize(static_cast<size_t>(info.num_bytes()));
  golden.read("logits", raw);
  std::vector<double> expected(static_cast<size_t>(info.num_elements()));
  safetensors::decode(info.type, raw, std::span<double>(expected));

  for (const char* dtype : {"float32", "float64"}) {
    ModelSourceOptions options;
    options.dtype = dtype;
    options.threads = 2;
    const ModelSource source = open_model_source(folder, options);
    EXPECT_FALSE(source.is_run);
    EXPECT_GE(source.max_context, S);
    for (int64_t rows : {int64_t{1}, int64_t{5}, S}) {
      infer::InferenceChoice choice;
      choice.num_sequences = B;
      choice.max_length = S;
      choice.prefill_rows = rows;
      choice.all_logits = true;
      infer::Inference model(source.config, choice);
      EXPECT_NE(source.load(model).find(GetParam()), std::string::npos);
      const auto next = infer::make_next_token(model);
      double worst = 0;
      int64_t seen = 0;
      next->each_row = [&](int64_t b, int64_t position, std::span<const double> row) {
        ++seen;
        const size_t at = static_cast<size_t>((b * S + position) * source.config.model.vocab_size);
        for (size_t v = 0; v < row.size(); ++v)
          if (!(std::abs(row[v] - expected[at + v]) <= worst)) worst = std::abs(row[v] - expected[at + v]);
      };
      next->append(tokens);
      EXPECT_EQ(seen, B * S);
      EXPECT_LE(worst, 1e-5) << dtype << " in pieces of " << rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecodeGolden, ::testing::ValuesIn(golden_families()),
                         [](const auto& info) { return info.param; });

TEST(ModelSource, NeitherRunNorModelIsRefused) {
  TemporaryFolder folder;
  const std::string message = message_of([&] { open_model_source(folder.path()); });
  EXPECT_NE(message.find("config.toml"), std::string::npos) << message;
  EXPECT_NE(message.find("config.json"), std::string::npos) << message;
}

}  // namespace
}  // namespace pleat::exchange::testing
