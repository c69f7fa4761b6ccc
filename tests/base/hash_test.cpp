#include "base/hash.h"

#include <gtest/gtest.h>

namespace pleat::base {
namespace {

TEST(Sha256, KnownVectors) {
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(to_hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, StreamingEqualsWhole) {
  const std::string text(1000, 'q');
  for (size_t cut = 0; cut <= text.size(); cut += 37) {
    Sha256 hash;
    hash.update(std::string_view(text).substr(0, cut));
    EXPECT_EQ(hash.digest(), sha256(text.substr(0, cut))) << "asking must not end the stream";
    hash.update(std::string_view(text).substr(cut));
    EXPECT_EQ(hash.digest(), sha256(text));
  }
}

TEST(Sha256, HexIsStrict) {
  Sha256Digest digest;
  const std::string hex = to_hex(sha256("x"));
  ASSERT_TRUE(from_hex(hex, digest));
  EXPECT_EQ(digest, sha256("x"));
  EXPECT_FALSE(from_hex(hex.substr(1), digest));
  EXPECT_FALSE(from_hex(hex + "0", digest));
  std::string upper = hex;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_FALSE(from_hex(upper, digest));
  std::string odd = hex;
  odd[0] = 'g';
  EXPECT_FALSE(from_hex(odd, digest));
}

}  // namespace
}  // namespace pleat::base
