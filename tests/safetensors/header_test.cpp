// Every rule for headers from files nobody vouches for, each refused with its own message; and that no
// damaged file gets past them.
#include "safetensors/header.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "base/error.h"
#include "safetensors/safetensors_support.h"

namespace pleat::safetensors {
namespace {

Header parse(const std::string& image) {
  // On the heap at its exact size: a read beyond it is seen by the sanitizer.
  const std::vector<char> exact(image.begin(), image.end());
  return parse_file(std::as_bytes(std::span(exact)), "x.safetensors");
}

Header parse_one(const std::string& fields, size_t data_bytes) {
  return parse(file_image("{\"a\":{" + fields + "}}", std::string(data_bytes, 'd')));
}

const std::string kGood = R"({"__metadata__":{"format":"pt","k":"\u00e4"},)"
                          R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
                          R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},)"
                          R"("s":{"dtype":"I64","shape":[],"data_offsets":[12,20]},)"
                          R"("e":{"dtype":"F64","shape":[0,9],"data_offsets":[4,4]}}   )";

TEST(Header, ReadsTheTableInByteOrder) {
  const Header header = parse(file_image(kGood, std::string(20, 'd')));
  ASSERT_EQ(header.tensors().size(), 4u);
  EXPECT_EQ(header.tensors()[0].name, "a");
  EXPECT_EQ(header.tensors()[0].type, ElementType::BF16);
  EXPECT_EQ(header.tensors()[0].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(header.tensors()[1].name, "e");
  EXPECT_EQ(header.tensors()[1].num_elements(), 0);
  EXPECT_EQ(header.tensors()[2].name, "b");
  EXPECT_EQ(header.tensors()[2].begin, 4);
  EXPECT_EQ(header.tensors()[2].end, 12);
  EXPECT_EQ(header.tensors()[3].num_elements(), 1);
  EXPECT_EQ(header.find("s"), &header.tensors()[3]);
  EXPECT_EQ(header.find("t"), nullptr);
  EXPECT_EQ(header.find(""), nullptr);
  EXPECT_EQ(header.metadata().at("k"), "\xc3\xa4");
}

TEST(Header, EveryElementTypeHasItsSize) {
  const std::pair<const char*, int64_t> types[] = {{"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1},
                                                   {"F8_E5M2", 1}, {"I16", 2}, {"F16", 2}, {"BF16", 2},
                                                   {"I32", 4},     {"F32", 4}, {"I64", 8}, {"F64", 8}};
  for (const auto& [name, size] : types) {
    const Header header =
        parse_one(fmt::format(R"("dtype":"{}","shape":[3],"data_offsets":[0,{}])", name, 3 * size),
                  3 * static_cast<size_t>(size));
    EXPECT_EQ(name_of(header.tensors()[0].type), name);
    EXPECT_EQ(header.tensors()[0].num_elements(), 3);
  }
}

TEST(Header, NoTensorsIsAFile) { EXPECT_TRUE(parse(file_image("{}", "")).tensors().empty()); }

TEST(HeaderAttack, Length) {
  EXPECT_REFUSED(parse(""), "0 bytes are too few");
  EXPECT_REFUSED(parse("1234567"), "7 bytes are too few");
  EXPECT_REFUSED(parse(length_bytes(0)), "does not start with '{'");
  EXPECT_REFUSED(parse(length_bytes(3) + "{}"), "header length 3 is larger than the 2 bytes that follow it");
  EXPECT_REFUSED(parse(length_bytes(100'000'001) + "{}"),
                 "header length 100000001 is above the limit of 100000000");
  EXPECT_REFUSED(parse(length_bytes(100'000'000) + "{}"), "larger than the 2 bytes");
  // Lengths that wrap when 8 is added.
  EXPECT_REFUSED(parse(length_bytes(UINT64_MAX) + "{}"), "header length 18446744073709551615 is above");
  EXPECT_REFUSED(parse(length_bytes(UINT64_MAX - 7) + "{}"), "is above the limit");
  EXPECT_REFUSED(parse(length_bytes(uint64_t{1} << 63) + "{}"), "is above the limit");
}

TEST(HeaderAttack, Pickle) {
  EXPECT_REFUSED(parse(std::string("PK\x03\x04\x00\x00\x08\x08", 8) + "archive/data.pkl"),
                 "looks like a Python pickle");
  EXPECT_REFUSED(parse("\x80\x02}q\x01(X\x05"), "looks like a Python pickle");
}

TEST(HeaderAttack, SizesThatWrap) {
  const char* zero = R"(,"data_offsets":[0,0])";
  // 2^32 x 2^32 is zero in 64 bits: an "empty" tensor whose checks would be skipped.
  EXPECT_REFUSED(parse_one(std::string(R"("dtype":"U8","shape":[4294967296,4294967296])") + zero, 0),
                 "shape [4294967296, 4294967296] of tensor 'a' times the 1 bytes of U8 overflows");
  // The product fits; times the element size it wraps.
  EXPECT_REFUSED(parse_one(std::string(R"("dtype":"F64","shape":[2147483648,1073741824])") + zero, 0),
                 "times the 8 bytes of F64 overflows");
  // A zero beside them must not hide it, on either side.
  EXPECT_REFUSED(parse_one(std::string(R"("dtype":"U8","shape":[0,4294967296,4294967296])") + zero, 0),
                 "overflows");
  EXPECT_REFUSED(parse_one(std::string(R"("dtype":"U8","shape":[4294967296,4294967296,0])") + zero, 0),
                 "overflows");
  // An exabyte in a small file.
  EXPECT_REFUSED(parse_one(R"("dtype":"F32","shape":[1073741824,1073741824],"data_offsets":[0,4])", 4),
                 "needs 4611686018427387904 bytes, but data_offsets [0, 4] hold 4");
}

TEST(HeaderAttack, NumbersThatAreNotPlainWholeNumbers) {
  const auto shape = [](const std::string& number) {
    return parse_one(R"("dtype":"U8","shape":[)" + number + R"(],"data_offsets":[0,1])", 1);
  };
  EXPECT_NO_THROW(shape("1"));
  EXPECT_REFUSED(shape("-1"), "shape of tensor 'a' holds a negative number");
  EXPECT_REFUSED(shape("-0"), "holds a negative number");
  EXPECT_REFUSED(shape("1.0"), "holds a number with a sign, fraction or exponent");
  EXPECT_REFUSED(shape("1e0"), "holds a number with a sign, fraction or exponent");
  EXPECT_REFUSED(shape("1e3"), "fraction or exponent");
  EXPECT_REFUSED(shape("1e999"), "a number beyond any size");
  EXPECT_REFUSED(shape("9007199254740993"), "holds a number above 2^53");
  EXPECT_REFUSED(shape("18446744073709551616"), "holds a number above 2^53");
  EXPECT_REFUSED(shape("18446744073709551617"), "holds a number above 2^53");  // 1, had it wrapped
  EXPECT_REFUSED(shape("9007199254740992"), "needs 9007199254740992 bytes");   // 2^53 itself is a number
  EXPECT_REFUSED(shape("01"), "not valid JSON");
  EXPECT_REFUSED(shape("+1"), "not valid JSON");
  EXPECT_REFUSED(shape("0x1"), "not valid JSON");
  EXPECT_REFUSED(shape("NaN"), "not valid JSON");
  EXPECT_REFUSED(shape("\"1\""), "shape of tensor 'a' holds a string");
  EXPECT_REFUSED(shape("null"), "shape of tensor 'a' holds null");
  EXPECT_REFUSED(shape("true"), "shape of tensor 'a' holds a boolean");
  EXPECT_REFUSED(shape("[1]"), "shape of tensor 'a' holds an array");
  EXPECT_REFUSED(shape("{}"), "shape of tensor 'a' holds an object");
  EXPECT_REFUSED(parse_one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1.0])", 1),
                 "data_offsets of tensor 'a' holds a number with a sign, fraction or exponent");
  EXPECT_REFUSED(parse_one(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])", 1),
                 "data_offsets of tensor 'a' holds a negative number");
}

TEST(HeaderAttack, Offsets) {
  const auto two = [](const std::string& a, const std::string& b, size_t data_bytes) {
    return parse(file_image(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                                R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}",
                            std::string(data_bytes, 'd')));
  };
  EXPECT_NO_THROW(two("[0,4]", "[4,8]", 8));
  EXPECT_NO_THROW(two("[4,8]", "[0,4]", 8));
  EXPECT_REFUSED(two("[0,4]", "[5,9]", 9),
                 "bytes 4 to 5 of the data, before tensor 'b', belong to no tensor");
  EXPECT_REFUSED(two("[1,5]", "[5,9]", 9), "bytes 0 to 1 of the data, before tensor 'a'");
  EXPECT_REFUSED(two("[0,4]", "[2,6]", 6),
                 "tensor 'b' starts at byte 2 inside the tensor before it, which ends at 4");
  EXPECT_REFUSED(two("[0,4]", "[0,4]", 4), "tensor 'b' starts at byte 0 inside");  // one range for two names
  EXPECT_REFUSED(two("[0,4]", "[8,4]", 8), "data_offsets [8, 4] of tensor 'b' run backwards");
  EXPECT_REFUSED(two("[0,4]", "[4,8]", 7), "tensor 'b' ends at byte 8, but the file holds 7 bytes of data");
  EXPECT_REFUSED(two("[0,4]", "[4,8]", 9),
                 "the last tensor ends at byte 8, but the file holds 9 bytes of data");
  EXPECT_REFUSED(two("[0,4]", "[4,9]", 9),
                 "shape [4] and type U8 needs 4 bytes, but data_offsets [4, 9] hold 5");
  EXPECT_REFUSED(two("[0,4]", "[4]", 8), "data_offsets of tensor 'b' must be two numbers");
  EXPECT_REFUSED(two("[0,4]", "[4,8,8]", 8), "data_offsets of tensor 'b' must be two numbers");
  EXPECT_REFUSED(parse(file_image("{}", "d")), "the last tensor ends at byte 0, but the file holds 1 bytes");
}

TEST(HeaderAttack, EmptyTensorsAreCheckedToo) {
  const auto with_empty = [](const std::string& offsets) {
    return parse(file_image(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                            R"("z":{"dtype":"U8","shape":[0],"data_offsets":)" +
                                offsets + "}}",
                            "dddd"));
  };
  EXPECT_NO_THROW(with_empty("[0,0]"));
  EXPECT_NO_THROW(with_empty("[4,4]"));
  EXPECT_REFUSED(with_empty("[2,2]"), "tensor 'z' starts at byte 2 inside");
  EXPECT_REFUSED(with_empty("[5,5]"), "tensor 'z' ends at byte 5, but the file holds 4");
  EXPECT_REFUSED(with_empty("[0,4]"), "needs 0 bytes, but data_offsets [0, 4] hold 4");
  EXPECT_REFUSED(with_empty("[9007199254740992,9007199254740992]"), "ends at byte 9007199254740992");
}

TEST(HeaderAttack, UnknownTypeIsNotCheckedLess) {
  EXPECT_REFUSED(parse_one(R"("dtype":"Q4","shape":[1],"data_offsets":[0,1])", 1),
                 "tensor 'a' has the unknown dtype 'Q4'; known: BOOL U8");
  EXPECT_REFUSED(parse_one(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])", 4), "unknown dtype 'f32'");
  EXPECT_REFUSED(parse_one(R"("dtype":"","shape":[1],"data_offsets":[0,4])", 4), "unknown dtype ''");
  EXPECT_REFUSED(parse_one(R"("dtype":7,"shape":[1],"data_offsets":[0,4])", 4),
                 "'dtype' of tensor 'a' is a number");
}

TEST(HeaderAttack, Schema) {
  EXPECT_REFUSED(parse_one(R"("shape":[1],"data_offsets":[0,4])", 4), "tensor 'a' has no 'dtype'");
  EXPECT_REFUSED(parse_one(R"("dtype":"F32","data_offsets":[0,4])", 4), "tensor 'a' has no 'shape'");
  EXPECT_REFUSED(parse_one(R"("dtype":"F32","shape":[1])", 4), "tensor 'a' has no 'data_offsets'");
  EXPECT_REFUSED(parse_one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"stride":[1])", 4),
                 "tensor 'a' has the unknown key 'stride'");
  EXPECT_REFUSED(parse_one(R"("dtype":"F32","shape":4,"data_offsets":[0,4])", 4),
                 "'shape' of tensor 'a' is a number");
  EXPECT_REFUSED(parse(file_image(R"({"a":1})", "")), "'a' is a number; an object is needed");
  EXPECT_REFUSED(parse(file_image(R"({"a":[]})", "")), "'a' is an array; an object is needed");
  EXPECT_REFUSED(parse(file_image(R"({"a":"x"})", "")), "'a' is a string; an object is needed");
  std::string ones = "1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  EXPECT_REFUSED(parse_one(R"("dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1])", 1),
                 "tensor 'a' has more than 64 dimensions");
}

TEST(HeaderAttack, Metadata) {
  EXPECT_REFUSED(parse(file_image(R"({"__metadata__":{"a":1}})", "")),
                 "__metadata__ key 'a' holds a number; only strings are allowed");
  EXPECT_REFUSED(parse(file_image(R"({"__metadata__":{"a":{"b":"c"}}})", "")),
                 "__metadata__ key 'a' holds an object");
  EXPECT_REFUSED(parse(file_image(R"({"__metadata__":{"a":["b"]}})", "")),
                 "__metadata__ key 'a' holds an array");
  EXPECT_REFUSED(parse(file_image(R"({"__metadata__":{"a":null}})", "")), "__metadata__ key 'a' holds null");
  EXPECT_REFUSED(parse(file_image(R"({"__metadata__":"pt"})", "")),
                 "'__metadata__' is a string; an object is needed");
}

TEST(HeaderAttack, DoubledKeys) {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_REFUSED(parse(file_image("{" + a + "," + a + "}", "d")), "key 'a' appears twice in one object");
  // The same name in another spelling.
  EXPECT_REFUSED(
      parse(file_image("{" + a + R"(,"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "dd")),
      "key 'a' appears twice");
  EXPECT_REFUSED(parse_one(R"("dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1])", 1),
                 "key 'dtype' appears twice");
  EXPECT_REFUSED(parse(file_image(R"({"__metadata__":{"k":"1","k":"2"}})", "")), "key 'k' appears twice");
  EXPECT_REFUSED(parse(file_image(R"({"__metadata__":{},"__metadata__":{}})", "")),
                 "key '__metadata__' appears twice");
}

TEST(HeaderAttack, Text) {
  EXPECT_REFUSED(parse(file_image("[]", "")), "does not start with '{'");
  EXPECT_REFUSED(parse(file_image(" {}", "")), "does not start with '{'");
  EXPECT_REFUSED(parse(file_image("\xef\xbb\xbf{}", "")), "does not start with '{'");  // byte order mark
  EXPECT_REFUSED(parse(file_image("{", "")), "not valid JSON");
  EXPECT_REFUSED(parse(file_image("{}{}", "")), "not valid JSON at byte 3");
  EXPECT_REFUSED(parse(file_image("{},", "")), "not valid JSON");
  EXPECT_REFUSED(parse(file_image("{} // c", "")), "not valid JSON");
  EXPECT_REFUSED(parse(file_image(R"({"__metadata__":{"a":"b",}})", "")), "not valid JSON");
  // Another document hidden behind a zero byte, where some parsers stop.
  EXPECT_REFUSED(parse(file_image(std::string("{}\0PK\x03\x04", 7), "")), "byte 2 of the JSON is zero");
  EXPECT_REFUSED(parse(file_image(std::string("{\"__metadata__\":{\"a\":\"\0\"}}", 26), "")),
                 "of the JSON is zero");
}

TEST(HeaderAttack, Utf8) {
  const auto named = [](const std::string& name) {
    return parse(file_image("{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "d"));
  };
  EXPECT_NO_THROW(named("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"));
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xe2\x82", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xfe"})
    EXPECT_REFUSED(named(bad), "byte 2 of the JSON is not valid UTF-8");
  EXPECT_REFUSED(named(R"(\ud800)"), "not valid JSON");  // half of a surrogate pair
  EXPECT_REFUSED(named(R"(\udc00)"), "not valid JSON");
  EXPECT_REFUSED(named(R"(\u0000)"), "name '\\x00' holds a control character");
  EXPECT_REFUSED(named(R"(\u001b[2J)"), "name '\\x1b[2J' holds a control character");
  EXPECT_REFUSED(named("\n"), "not valid JSON");
}

TEST(HeaderAttack, NestingAndCounts) {
  const auto nested = [](int levels) {
    std::string json = "{\"a\":";
    for (int i = 1; i < levels; ++i) json += '[';
    return json;
  };
  EXPECT_REFUSED(parse(file_image(nested(33), "")), "nested deeper than 32 levels");
  EXPECT_REFUSED(parse(file_image(nested(1'000'000), "")), "nested deeper than 32 levels");
  EXPECT_REFUSED(parse(file_image(nested(32), "")), "'a' is an array");
  // Brackets in a name are no nesting.
  EXPECT_REFUSED(
      parse(file_image("{\"" + std::string(100, '[') + "\\\"" + std::string(100, '{') + "\":1}", "")),
      "is a number");

  const auto long_name = [](size_t bytes) {
    return parse(file_image(
        "{\"" + std::string(bytes, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "d"));
  };
  EXPECT_NO_THROW(long_name(1024));
  EXPECT_REFUSED(long_name(1025), "a name has 1025 bytes; at most 1024 are allowed");

  std::string json = "{";
  for (int i = 0; i <= kMaxTensors; ++i)
    json += fmt::format(R"("{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},)", i);
  json.back() = '}';
  EXPECT_REFUSED(parse_header(json, 0, "x"), "more than 1000000 tensors");
}

TEST(HeaderAttack, MessagesAreSafeToPrint) {
  const std::string hostile = "\xc2\x9b" + std::string(1000, 'n');
  const std::string message = refusal([&] { parse(file_image("{\"" + hostile + "\":1}", "")); });
  EXPECT_LT(message.size(), 300u);
  EXPECT_NE(message.find("'\\xc2\\x9bnnn"), std::string::npos) << message;
}

TEST(HeaderDamage, EveryTruncationIsRefused) {
  const std::string image = file_image(kGood, std::string(20, 'd'));
  EXPECT_NO_THROW(parse(image));
  for (size_t length = 0; length < image.size(); ++length)
    EXPECT_THROW(parse(image.substr(0, length)), base::Error) << length;
  EXPECT_THROW(parse(image + "d"), base::Error);
}

TEST(HeaderDamage, RandomEditsAreRefusedOrConsistent) {
  const std::string image = file_image(kGood, std::string(20, 'd'));
  constexpr std::string_view kTokens[] = {"0",   "9",       "[",    "]",    "{",
                                          "}",   ",",       ":",    "\"",   "-1",
                                          "1e9", "\\u0000", "null", "\xff", "18446744073709551615"};
  Random random(71);
  int num_accepted = 0;
  std::set<std::string> messages;
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = image;
    const uint64_t num_edits = 1 + random.below(3);
    for (uint64_t edit = 0; edit < num_edits; ++edit) {
      const size_t at = random.below(damaged.size());
      switch (random.below(5)) {
        case 0:
          damaged[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          damaged[at] = static_cast<char>(damaged[at] ^ 1 << random.below(8));
          break;
        case 2:
          damaged.erase(at, 1 + random.below(6));
          break;
        case 3:
          damaged.insert(at, kTokens[random.below(std::size(kTokens))]);
          break;
        default:
          damaged[at] = damaged[random.below(damaged.size())];
      }
      if (damaged.empty()) damaged = "x";
    }
    // Half of them get the right length again, so that the JSON is reached.
    if (round % 2 == 0 && damaged.size() >= 28) damaged.replace(0, 8, length_bytes(damaged.size() - 28));
    try {
      const Header header = parse(damaged);
      int64_t covered = 0;
      for (const TensorInfo& tensor : header.tensors()) {
        ASSERT_EQ(tensor.begin, covered);
        ASSERT_EQ(tensor.num_bytes(), num_bytes_of(tensor, ""));
        covered = tensor.end;
      }
      ASSERT_LE(covered, static_cast<int64_t>(damaged.size()));
      ++num_accepted;
    } catch (const base::Error& error) {
      messages.insert(error.what());
    }
  }
  EXPECT_GT(num_accepted, 100);  // edits of names, padding and data
  EXPECT_GT(messages.size(), 100u);
}

}  // namespace
}  // namespace pleat::safetensors
