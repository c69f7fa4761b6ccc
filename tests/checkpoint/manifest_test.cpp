// The manifest as text: one spelling, and every hostile text refused with its own message.
#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/damage.h"

namespace pleat::checkpoint {
namespace {

// The manifest of a real checkpoint without its digest line.
std::string real_body() {
  static const std::string body = [] {
    base::SimVfs vfs;
    save(vfs, "run", TestState(1).view(), small_options());
    save(vfs, "run", TestState(2).view(), small_options());
    return base::read_file(vfs, "run/step-2/MANIFEST", 1 << 20);
  }();
  return body.substr(0, body.rfind("sha256 "));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_refused(const std::string& body, const std::string& part) {
  const Thrown thrown = thrown_by([&] { parse_manifest_body(body, "M"); });
  EXPECT_EQ(thrown.code, base::ExitCode::BadInput);
  EXPECT_NE(thrown.message.find(part), std::string::npos)
      << "wanted: " << part << "\ngot: " << thrown.message;
  // The same text with a right digest is refused all the same.
  const std::string signed_text = body + "sha256 " + base::to_hex(base::sha256(body)) + "\n";
  EXPECT_EQ(thrown_by([&] { parse_manifest(signed_text, "M"); }).message, thrown.message);
}

TEST(Manifest, PrintsWhatItParses) {
  const Manifest manifest = parse_manifest_body(real_body(), "M");
  EXPECT_EQ(manifest.step, 2);
  EXPECT_EQ(print_manifest(manifest).substr(0, real_body().size()), real_body());
}

TEST(Manifest, DigestLineIsRequired) {
  const std::string body = real_body();
  const std::string digest = base::to_hex(base::sha256(body));
  EXPECT_NO_THROW(parse_manifest(body + "sha256 " + digest + "\n", "M"));
  for (const std::string& line : {std::string(), "sha256 " + digest, "sha256 " + digest + " ",
                                  "SHA256 " + digest + "\n", digest + "\n", "sha256 " + digest + "\n\n"}) {
    const Thrown thrown = thrown_by([&] { parse_manifest(body + line, "M"); });
    EXPECT_EQ(thrown.code, base::ExitCode::Storage);
    EXPECT_EQ(thrown.message, "M: truncated or damaged: the last line is not its SHA-256");
  }
  const Thrown thrown = thrown_by([&] { parse_manifest(body + " sha256 " + digest + "\n", "M"); });
  EXPECT_EQ(thrown.message, "M: damaged: the contents do not have the SHA-256 in the last line");
}

TEST(Manifest, OneOfANewerVersionIsNoDamage) {
  const std::string body = replaced(real_body(), "\"version\": 2", "\"version\": 4");
  const std::string text = body + "sha256 " + base::to_hex(base::sha256(body)) + "\n";
  EXPECT_THROW(parse_manifest(text, "M"), NotForUs);
  EXPECT_EQ(thrown_by([&] { parse_manifest(text, "M"); }).message,
            "M: written by a newer Pleat, in format version 4; this one reads 1 to 3");
}

TEST(Manifest, HostileTextsAreRefused) {
  const std::string body = real_body();
  expect_refused("", "not valid JSON");
  expect_refused("[]", "an array is not allowed here");
  expect_refused("7", "a number is not allowed here");
  expect_refused("{}", "the manifest has no key 'format'");
  expect_refused(std::string(100000, '['), "an array is not allowed here");
  expect_refused(replaced(body, "\"integers\": {", "\"integers\": {\"a\": {\"b\": 1},"),
                 "must not hold an object");
  expect_refused(replaced(body, "\"shape\": [3", "\"shape\": [[3]"), "must not hold an array");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": 2, \"step\": 2"), "key 'step' occurs twice");
  expect_refused(replaced(body, "\"zero\": 0", "\"zero\": 0, \"zero\": 0"), "key 'zero' occurs twice");
  expect_refused(replaced(body, "\"row_bytes\": 120", "\"row_bytes\": 120, \"row_bytes\": 120"),
                 "key 'row_bytes' occurs twice");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": 2.5"), "not an integer of 64 bits");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": 2e0"), "not an integer of 64 bits");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": 18446744073709551616"),
                 "not an integer of 64 bits");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": 18446744073709551615"), "does not fit in 63 bits");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": -2"), "key 'step' is -2");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": \"2\""), "key 'step' must not hold a string");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": null"), "key 'step' must not hold null");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": true"), "key 'step' must not hold a boolean");
  expect_refused(replaced(body, "\"step\": 2", "\"step\": 2, \"stop\": 2"),
                 "key 'stop' must not hold a number");
  expect_refused(replaced(body, "\"version\": 2", "\"version\": 0"), "there is no format version 0");
  expect_refused(replaced(body, "\"version\": 2", "\"version\": 1"), "'row_bytes' must not hold a number");
  expect_refused(replaced(body, "pleat-checkpoint", "pleat-chequepoint"), "the format is not");
  expect_refused(replaced(body, "\"dtype\": \"i64\"", "\"dtype\": \"i63\""), "unknown element type 'i63'");
  expect_refused(replaced(body, "\"shape\": [3, 5]", "\"shape\": [3, 6]"),
                 "has length 120; its shape needs 144");
  expect_refused(replaced(body, "\"shape\": [3, 5]", "\"shape\": [4294967296, 4294967296]"), "more than");
  expect_refused(replaced(body, "\"shape\": [4, 0]", "\"shape\": [0, 9007199254740992, 2]"), "more than");
  expect_refused(
      replaced(body, "\"shape\": [3, 5]", "\"shape\": [3, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"),
      "more than 16 dimensions");
  expect_refused(replaced(body, "\"row_bytes\": 120", "\"row_bytes\": 0"), "cannot have rows of 0");
  expect_refused(replaced(body, "\"row_bytes\": 120", "\"row_bytes\": 7"), "cannot have rows of 7");
  expect_refused(replaced(body, "\"row_bytes\": 120", "\"row_bytes\": 240"), "cannot have rows of 240");
  expect_refused(replaced(body, "\"name\": \"flags\"", "\"name\": \"empty\""),
                 "two tensors are named 'empty'");
  expect_refused(replaced(body, "\"name\": \"flags\"", "\"name\": \"aflags\""), "not in ascending order");
  expect_refused(replaced(body, "\"name\": \"counts\"", "\"name\": \"coUnts\""),
                 "the state digest is not that");
  expect_refused(replaced(body, "\"name\": \"counts\"", "\"name\": \"\""), "has 0 bytes");
  expect_refused(replaced(body, "\"name\": \"counts\"", "\"name\": \"a\\u0000b\""), "control character");
  expect_refused(replaced(body, "\"name\": \"counts\"", "\"name\": \"\xff\""), "not valid JSON");
  expect_refused(replaced(body, "\"zero\"", "\"" + std::string(1025, 'z') + "\""), "a key has 1025 bytes");
  expect_refused(replaced(body, "\"shard-000001\"", "\"../shard\""), "file name is not");
  expect_refused(replaced(body, "\"shard-000001\"", "\"shard-000000\""), "'shard-000001' was expected");
  expect_refused(replaced(body, "\"start\": 2000, \"length\": 2000", "\"start\": 2000, \"length\": 1999"),
                 "file length");
  expect_refused(replaced(body, "\"start\": 2000", "\"start\": 2001"),
                 "starts at 2001; the one before ends at 2000");
  expect_refused(replaced(body, "\"block_bytes\": 512", "\"block_bytes\": 0"), "block_bytes 0");
  expect_refused(replaced(body, "\"block_bytes\": 512", "\"block_bytes\": 67108865"), "block_bytes 67108865");
  expect_refused(replaced(body, "\"block_bytes\": 512", "\"block_bytes\": 100"), "file length");
  expect_refused(replaced(body, "\"parent\": {\"step\": 1", "\"parent\": {\"step\": 2"),
                 "parent step 2 is not before");
  expect_refused(replaced(body, "\"parent\": {\"step\": 1, ", "\"parent\": {"),
                 "the parent has no key 'step'");
  expect_refused(replaced(body, "\"minus_zero\": \"8", "\"minus_zero\": \"G"), "16 lower-case hex digits");
  expect_refused(replaced(body, "\"state_sha256\": \"", "\"state_sha256\": \"0"), "64 lower-case hex digits");
  expect_refused(body + "\n", "canonical");
  expect_refused(replaced(body, "\"step\": 2", "\"step\":  2"), "canonical");
  expect_refused(replaced(body, "\"zero\": 0", "\"zero\": -0"), "canonical");
  expect_refused(body + "{}", "not valid JSON");
}

TEST(Manifest, PlainFileNames) {
  for (const char* good : {"a", "shard-000001", "A_b.c", "..."})
    EXPECT_TRUE(is_plain_file_name(good)) << good;
  for (const char* bad : {"", ".", "..", "a/b", "/a", "a b", "a\\b", "\xc3\xa4"})
    EXPECT_FALSE(is_plain_file_name(bad)) << bad;
  EXPECT_TRUE(is_plain_file_name(std::string(255, 'x')));
  EXPECT_FALSE(is_plain_file_name(std::string(256, 'x')));
}

}  // namespace
}  // namespace pleat::checkpoint
