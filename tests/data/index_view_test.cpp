// The .idx parser against correct, damaged and hostile files.
#include "data/index_view.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

#include "base/error.h"
#include "data/data_support.h"

namespace pleat::data {
namespace {

IndexView view_of(const std::string& bytes, int64_t bin_bytes) {
  return IndexView(std::as_bytes(std::span(bytes)), bin_bytes, "x.idx");
}

RawIndex correct() { return RawIndex::of({{3}, {2, 4}, {1}}, TokenType::U16); }

TEST(IndexView, ReadsACorrectIndex) {
  const std::string bytes = correct().bytes();
  const IndexView view = view_of(bytes, 20);
  EXPECT_EQ(view.token_type(), TokenType::U16);
  EXPECT_EQ(view.num_sequences(), 4);
  EXPECT_EQ(view.num_documents(), 3);
  EXPECT_EQ(view.num_tokens(), 10);
  EXPECT_EQ(view.sequence_length(2), 4);
  const int64_t begins[] = {0, 3, 9, 10};
  for (int64_t d = 0; d <= 3; ++d) EXPECT_EQ(view.document_begin(d), begins[d]);
  const int64_t documents[] = {0, 0, 0, 1, 1, 1, 1, 1, 1, 2};
  for (int64_t t = 0; t < 10; ++t) EXPECT_EQ(view.document_of(t), documents[t]) << t;
}

TEST(IndexView, AcceptsEmptyDocumentsAndSequences) {
  const RawIndex raw = RawIndex::of({{}, {2}, {}, {0}, {}, {0, 3}, {}}, TokenType::I32);
  const std::string bytes = raw.bytes();
  const IndexView view = view_of(bytes, raw.bin_bytes());
  EXPECT_EQ(view.num_documents(), 7);
  EXPECT_EQ(view.document_of(0), 1);
  EXPECT_EQ(view.document_of(1), 1);
  for (int64_t t = 2; t < 5; ++t) EXPECT_EQ(view.document_of(t), 5);

  const RawIndex nothing = RawIndex::of({}, TokenType::U16);
  const std::string nothing_bytes = nothing.bytes();
  EXPECT_EQ(view_of(nothing_bytes, 0).num_tokens(), 0);
}

struct Damage {
  const char* what;
  std::function<void(RawIndex&)> apply;
  const char* message;
};

const int64_t kMin = std::numeric_limits<int64_t>::min();
const int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(IndexView, EachDamageHasItsOwnMessage) {
  const Damage damages[] = {
      {"magic", [](RawIndex& i) { i.magic[3] = 'X'; }, "wrong magic"},
      {"version", [](RawIndex& i) { i.version = 2; }, "index version 2 is not known; version 1 is needed"},
      {"float64", [](RawIndex& i) { i.type = 6; }, "token type 6 is a floating-point type"},
      {"unknown type", [](RawIndex& i) { i.type = 9; }, "token type code 9 is not known"},
      {"sequence count 2^63", [](RawIndex& i) { i.num_sequences = uint64_t{1} << 63; },
       "sequence count 9223372036854775808 needs 12 bytes each, but only 80 bytes follow the header"},
      {"document count 2^61", [](RawIndex& i) { i.num_boundaries = uint64_t{1} << 61; },
       "document index length 2305843009213693952 needs 8 bytes each, but only 32 bytes follow the "
       "sequences"},
      {"no boundaries",
       [](RawIndex& i) {
         i.num_boundaries = 0;
         i.boundaries.clear();
       },
       "document index is empty"},
      {"mode bytes",
       [](RawIndex& i) {
         i.num_sequences = 8;
         i.lengths = {1, 1, 1, 1, 1, 1, 1, 1};
         i.offsets = {0, 2, 4, 6, 8, 10, 12, 14};
         i.boundaries = {0, 8, 0};
         i.num_boundaries = 2;
       },
       "one mode byte per sequence"},
      {"trailing bytes", [](RawIndex& i) { i.boundaries.push_back(4); },
       "8 bytes follow the end of the document index"},
      {"negative length", [](RawIndex& i) { i.lengths[1] = -2; }, "sequence 1 has negative length -2"},
      {"negative offset", [](RawIndex& i) { i.offsets[1] = kMin; }, "sequence 1 has negative byte offset"},
      {"unaligned", [](RawIndex& i) { i.offsets[2] = 11; }, "byte offset 11 of sequence 2 is not aligned"},
      {"offset outside", [](RawIndex& i) { i.offsets[3] = kMax - 1; },
       "sequence 3 (2 bytes at offset 9223372036854775806) lies outside the .bin of 20 bytes"},
      {"length outside", [](RawIndex& i) { i.lengths[2] = std::numeric_limits<int32_t>::max(); },
       "sequence 2 (4294967294 bytes at offset 10) lies outside"},
      {"overlap", [](RawIndex& i) { i.offsets[1] = 4; },
       "sequence 1 begins at byte 4, but the sequences before it end at byte 6"},
      {"first offset", [](RawIndex& i) { i.offsets[0] = 2; }, "sequence 0 begins at byte 2"},
      {"short of the bin", [](RawIndex& i) { i.lengths[3] = 0; },
       "the sequences end at byte 18, but the .bin has 20 bytes"},
      {"first document", [](RawIndex& i) { i.boundaries[0] = 1; }, "document index begins with 1"},
      {"falling", [](RawIndex& i) { i.boundaries[2] = 0; }, "document index falls from 1 to 0 at entry 2"},
      {"negative document", [](RawIndex& i) { i.boundaries[1] = -1; },
       "document index falls from 0 to -1 at entry 1"},
      {"document outside", [](RawIndex& i) { i.boundaries[2] = 5; },
       "document index entry 2 is 5, but there are only 4 sequences"},
      {"last document", [](RawIndex& i) { i.boundaries[3] = 3; },
       "document index ends with 3; it must end with the sequence count 4"},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.what);
    RawIndex raw = correct();
    damage.apply(raw);
    const std::string bytes = raw.bytes();
    const std::string message = refusal([&] { view_of(bytes, 20); });
    expect_in(damage.message, message);
    expect_in("x.idx: ", message);
  }
}

TEST(IndexView, CountsThatWrapAreRefused) {
  // 12 n + 8 d wraps to a small number for these; the products must not be formed.
  for (const uint64_t count :
       {uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} / 12 + 1, ~uint64_t{0} / 12}) {
    RawIndex raw = correct();
    raw.num_sequences = count;
    const std::string bytes = raw.bytes();
    expect_in("sequence count", refusal([&] { view_of(bytes, 20); }));
  }
  for (const uint64_t count : {uint64_t{1} << 61, uint64_t{1} << 63, ~uint64_t{0}}) {
    RawIndex raw = correct();
    raw.num_boundaries = count;
    const std::string bytes = raw.bytes();
    expect_in("document index length", refusal([&] { view_of(bytes, 20); }));
  }
}

TEST(IndexView, EveryTruncationIsRefused) {
  const std::string whole = correct().bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    // A copy of exactly this size, so that the address sanitizer sees a read past it.
    const std::vector<char> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const std::string message = refusal([&] { IndexView(std::as_bytes(std::span(part)), 20, "x.idx"); });
    if (size < kIndexHeaderBytes) expect_in("truncated header", message);
  }
}

TEST(IndexView, EveryFlippedBitIsRefused) {
  // One sequence per document: then a strictly rising document index is the only possible one but for
  // repeated entries, which the format allows (an empty document) and no reader can tell from damage.
  const RawIndex raw = RawIndex::of({{3}, {2}, {4}, {1}}, TokenType::U16);
  const std::string whole = raw.bytes();
  const size_t documents_begin = kIndexHeaderBytes + 12 * raw.lengths.size();
  int num_accepted = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    try {
      const IndexView view = view_of(damaged, raw.bin_bytes());
      ++num_accepted;
      EXPECT_GE(bit / 8, documents_begin) << "bit " << bit;
      for (int64_t t = 0; t < view.num_tokens(); ++t) {
        const int64_t d = view.document_of(t);
        EXPECT_LE(view.document_begin(d), t);
        EXPECT_GT(view.document_begin(d + 1), t);
      }
    } catch (const base::Error&) {
    }
  }
  EXPECT_LE(num_accepted, 4);
}

TEST(IndexView, OffsetsAcross2To31And2To32) {
  const std::vector<std::vector<int32_t>> documents(5, {std::numeric_limits<int32_t>::max()});
  const RawIndex raw = RawIndex::of(documents, TokenType::I32);
  const std::string bytes = raw.bytes();
  const IndexView view = view_of(bytes, raw.bin_bytes());
  const int64_t length = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(view.num_tokens(), 5 * length);
  for (int64_t d = 0; d < 5; ++d) {
    EXPECT_EQ(view.document_begin(d), d * length);
    EXPECT_EQ(view.document_of(d * length), d);
    EXPECT_EQ(view.document_of(d * length + length - 1), d);
  }
}

TEST(IndexView, BytesThatChangeLaterNeverLeadOutside) {
  RawIndex raw = correct();
  std::string bytes = raw.bytes();
  const IndexView view = view_of(bytes, 20);
  raw.boundaries[1] = 1000;
  raw.offsets[1] = kMax - 7;
  const std::string changed = raw.bytes();
  bytes.replace(0, bytes.size(), changed);
  expect_in("changed to 1000 while the file was in use", refusal([&] { view.document_begin(1); }));
  raw.boundaries[1] = 1;
  bytes.replace(0, bytes.size(), raw.bytes());
  expect_in("byte offset of sequence 1 changed", refusal([&] { view.document_begin(1); }));
}

}  // namespace
}  // namespace pleat::data
