#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace pleat::base {
namespace {

TEST(Crc32c, KnownVectors) {
  const auto check = [](std::vector<std::byte> bytes, uint32_t want) {
    EXPECT_EQ(crc32c(bytes), want);
    EXPECT_EQ(crc32c_portable(bytes), want);
  };
  const std::string_view digits = "123456789";
  const auto view = std::as_bytes(std::span(digits.data(), digits.size()));
  check({view.begin(), view.end()}, 0xE3069283u);
  check({}, 0);
  check(std::vector<std::byte>(32, std::byte{0}), 0x8A9136AAu);
  check(std::vector<std::byte>(32, std::byte{0xFF}), 0x62A8AB43u);
  std::vector<std::byte> rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising.push_back(static_cast<std::byte>(i));
    falling.push_back(static_cast<std::byte>(31 - i));
  }
  check(rising, 0x46DD794Eu);
  check(falling, 0x113FDB5Cu);
}

TEST(Crc32c, BothFormsAgreeAndChain) {
  std::mt19937_64 rng(3);
  std::vector<std::byte> bytes(200);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  for (size_t begin = 0; begin < 9; ++begin)
    for (size_t end = begin; end <= bytes.size(); ++end) {
      const auto part = std::span<const std::byte>(bytes).subspan(begin, end - begin);
      ASSERT_EQ(crc32c(part), crc32c_portable(part));
      const auto cut = part.size() / 3;
      ASSERT_EQ(crc32c(part.subspan(cut), crc32c(part.first(cut))), crc32c(part));
    }
}

}  // namespace
}  // namespace pleat::base
