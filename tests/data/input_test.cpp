// Files as people have them: packed ones give what they hold and nothing else; what is no text is refused by
// its first bytes, with the command that makes text of it.
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>

#include "base/error.h"
#include "base/text_name.h"
#include "data/byte_tokenizer.h"
#include "data/chat/chat_template.h"
#include "data/data_support.h"
#include "data/input/byte_source.h"
#include "data/input/file_kind.h"
#include "data/prepare.h"
#include "data/text_source.h"

namespace pleat::data {
namespace {

std::string gzipped(std::string_view text) {
  z_stream s = {};
  EXPECT_EQ(deflateInit2(&s, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&s, text.size()) + 64, '\0');
  s.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  s.avail_in = static_cast<uInt>(text.size());
  s.next_out = reinterpret_cast<Bytef*>(out.data());
  s.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&s, Z_FINISH), Z_STREAM_END);
  out.resize(s.total_out);
  deflateEnd(&s);
  return out;
}

std::string zstandard(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string all_of(const std::string& path) {
  const auto source = open_text_bytes(path);
  std::string out, block(10000, '\0');
  while (const size_t got = source->read(block)) out.append(block, 0, got);
  EXPECT_EQ(source->bytes_read(), static_cast<int64_t>(std::filesystem::file_size(path)));
  return out;
}

std::string some_text(size_t size) {
  std::string text;
  TestRandom random(7);
  while (text.size() < size)
    text += "word" + std::to_string(random.below(100000)) + (random.below(9) ? " " : "\n");
  return text;
}

class PackedInput : public ::testing::Test {
 protected:
  std::string fault(const std::string& name, std::string_view bytes) {
    write_file(folder_.at(name), bytes);
    const std::string message = refusal([&] { all_of(folder_.at(name)); });
    EXPECT_TRUE(message.starts_with(folder_.at(name) + ": ")) << message;
    return message;
  }
  TemporaryFolder folder_;
};

TEST_F(PackedInput, GivesWhatItHolds) {
  const std::string a = some_text(700000), b = some_text(90000), none;
  write_file(folder_.at("a.txt.gz"), gzipped(a));
  EXPECT_TRUE(all_of(folder_.at("a.txt.gz")) == a);
  write_file(folder_.at("a.txt.zst"), zstandard(a));
  EXPECT_TRUE(all_of(folder_.at("a.txt.zst")) == a);
  // Several members and frames, empty ones between them, zeros after the last gzip member.
  write_file(folder_.at("m.txt.gz"), gzipped(a) + gzipped(none) + gzipped(b) + std::string(700, '\0'));
  EXPECT_TRUE(all_of(folder_.at("m.txt.gz")) == a + b);
  const std::string skipped("\x50\x2a\x4d\x18\x03\x00\x00\x00xyz", 11);
  write_file(folder_.at("m.txt.zst"), skipped + zstandard(a) + zstandard(none) + skipped + zstandard(b));
  EXPECT_TRUE(all_of(folder_.at("m.txt.zst")) == a + b);
  for (const char* name : {"e.txt.gz", "e.txt.zst"}) {
    write_file(folder_.at(name), name[7] == 'z' && name[6] == 'g' ? gzipped(none) : zstandard(none));
    EXPECT_EQ(all_of(folder_.at(name)), "");
  }
}

TEST_F(PackedInput, DamagedAndTruncatedFilesAreNamed) {
  const std::string text = some_text(300000), gz = gzipped(text), zst = zstandard(text);
  for (const size_t kept : {size_t{3}, size_t{20}, gz.size() / 2, gz.size() - 9, gz.size() - 1})
    expect_in("the gzip data ends in the middle: the file is truncated",
              fault("t.txt.gz", gz.substr(0, kept)));
  for (const size_t kept : {size_t{5}, size_t{20}, zst.size() / 2, zst.size() - 1})
    expect_in("the Zstandard data ends in the middle: the file is truncated",
              fault("t.txt.zst", zst.substr(0, kept)));
  std::string bad = gz;
  bad[gz.size() / 2] ^= 0x55;
  expect_in("the gzip data is damaged", fault("d.txt.gz", bad));
  bad = gz;
  bad[gz.size() - 6] ^= 0x55;  // of the checksum
  expect_in("the gzip data is damaged", fault("d.txt.gz", bad));
  expect_in("damaged", fault("d.txt.gz", gz + "more"));
  expect_in("followed by something else", fault("d.txt.gz", gz + std::string("\0\0more", 6)));
  bad = zst;
  for (size_t i = 40; i < 200; ++i) bad[i] ^= 0x55;
  expect_in("the Zstandard data is damaged", fault("d.txt.zst", bad));
  expect_in("the Zstandard data is damaged", fault("d.txt.zst", zst + "more"));
  expect_in("the file is empty", fault("e.txt.gz", ""));
  expect_in("does not begin as a gzip file; if it holds text already: mv ", fault("p.txt.gz", "plain"));
  expect_in("does not begin as a Zstandard file", fault("p.txt.zst", gz));
}

TEST_F(PackedInput, DatasetsAreTheSameAsOfPlainFiles) {
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += R"({"messages": [{"role": "user", "content": "q)" + std::to_string(i) +
             R"("}, {"role": "assistant", "content": "r"}]})" + "\n";
  const ByteTokenizer tokenizer;
  const auto dataset = [&](const std::string& name, const std::string& bytes) {
    write_file(folder_.at(name), bytes);
    int64_t read = 0;
    const PrepareResult r = prepare({.inputs = {folder_.at(name)},
                                     .chat = chat_preset("plain"),
                                     .num_threads = 2,
                                     .output_prefix = folder_.at("out"),
                                     .split = 0.9,
                                     .progress = [&](const PrepareProgress& p) { read = p.bytes_read; }},
                                    tokenizer);
    EXPECT_EQ(read, static_cast<int64_t>(bytes.size())) << "progress counts packed bytes";
    EXPECT_EQ(r.forms.at(0), ChatForm::OpenAi);
    return read_file(folder_.at("out-train.bin")) + read_file(folder_.at("out-train.mask.bin")) +
           read_file(folder_.at("out-validation.bin"));
  };
  const std::string plain = dataset("c.jsonl", lines);
  EXPECT_TRUE(dataset("c.jsonl.gz", gzipped(lines)) == plain);
  EXPECT_TRUE(dataset("c.jsonl.zst", zstandard(lines)) == plain);
}

// A megabyte of zeros packed a thousandfold, a thousand times over: read in blocks, refused by its first.
TEST_F(PackedInput, ABombStaysSmall) {
  const std::string one = zstandard(std::string(1 << 22, 'x'));
  std::string bomb;
  for (int i = 0; i < 100; ++i) bomb += one;
  write_file(folder_.at("b.jsonl.zst"), bomb);
  expect_in(":1: line is longer than 1000000 bytes", refusal([&] {
              LineSource lines(folder_.at("b.jsonl.zst"), 1000000);
              std::string_view line;
              int64_t number = 0;
              lines.next(line, number);
            }));
}

class FileKinds : public PackedInput {};

TEST_F(FileKinds, AParquetFileWasReadAsText) {
  std::string random;
  TestRandom r(3);
  for (int i = 0; i < 4000; ++i) random += static_cast<char>(r.below(256));
  expect_in("this is a Parquet file; needed is text or JSONL: python3 -c \"import json,sys,pyarrow.parquet",
            fault("x.parquet", "PAR1" + random + "PAR1"));
  expect_in("this is a binary file; needed is text or JSONL", fault("x.parquet", random));
  expect_in("x-text.jsonl", fault("x.jsonl", "PAR1" + random));  // the file itself is not written over
}

TEST_F(FileKinds, AreToldByTheirFirstBytes) {
  const std::string zeros(600, '\0'), tar = "name.txt" + std::string(249, '\0') + "ustar" + zeros;
  const std::tuple<const char*, std::string, const char*> cases[] = {
      {"a.feather", "ARROW1" + zeros, "an Arrow or Feather file; needed is text or JSONL: python3"},
      {"a.arrow", "\xff\xff\xff\xff\x10" + zeros, "an Arrow stream"},
      {"a.zip", "PK\x03\x04" + zeros, "a zip archive; needed is text or JSONL: unzip "},
      {"a.pt", "PK\x03\x04....archive/data.pkl" + zeros, "a torch file"},
      {"a.pkl", "\x80\x04\x95" + zeros, "a Python pickle"},
      {"a.h5", "\x89HDF\r\n\x1a\n" + zeros, "an HDF5 file"},
      {"a.npy", "\x93NUMPY\x01" + zeros, "a NumPy array"},
      {"a.db", std::string("SQLite format 3\0", 16) + zeros, "an SQLite database"},
      {"a.jsonl", gzipped("{}"), "a gzip file; needed is text or JSONL: mv "},
      {"a.txt", zstandard("hello"), "a Zstandard file"},
      {"a.txt.xz",
       std::string("\xfd"
                   "7zXZ\0",
                   6) +
           zeros,
       "an xz file; needed is text or JSONL: xz -dc"},
      {"a.bz2", "BZh91AY&SY" + zeros, "a bzip2 file"},
      {"a.tar", tar, "a tar archive; needed is text or JSONL: tar -xf"},
      {"a.tar.gz", gzipped(tar), "holds a tar archive; needed is text or JSONL: tar -xf"},
      {"a.txt.gz", gzipped("PAR1" + zeros), "holds a Parquet file"},
      {"a.pdf", "%PDF-1.7\n%text", "a PDF document; needed is text or JSONL: pdftotext"},
      {"a.out",
       "\x7f"
       "ELF\x02" +
           zeros,
       "a program"},
      {"a.png", "\x89PNG\r\n\x1a\n" + zeros, "an image"},
      {"a.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
       "a Git LFS pointer, not the file itself; fetch the file with 'git lfs pull'"},
      {"a.txt", std::string("\xff\xfeh\0i\0", 6), "UTF-16 text; needed is text or JSONL: iconv -f UTF-16"},
      {"a.txt", std::string("h\0e\0l\0l\0o\0 \0y\0o\0u\0", 18), "UTF-16 text without a mark at its front"},
      {"a.txt", std::string("\0h\0e\0l\0l\0o\0 \0y\0o\0u", 18), "iconv -f UTF-16BE"},
      // What was JSON stays JSON, and UTF-32 is not taken for UTF-16.
      {"a.jsonl", std::string("\xff\xfe{\0}\0", 6), "a-text-utf8.jsonl"},
      {"a.ndjson", std::string("\xff\xfe{\0}\0", 6), "a-utf8.ndjson"},
      {"corpus", std::string("\xff\xfeh\0i\0", 6), "corpus-utf8.txt"},
      {"a.txt", std::string("\xff\xfe\0\0h\0\0\0", 8),
       "UTF-32 text; needed is text or JSONL: iconv -f UTF-32 "},
      {"a.txt", std::string("\0\0\xfe\xff\0\0\0h", 8), "UTF-32 text"},
      {"a.txt", std::string("h\0\0\0e\0\0\0l\0\0\0l\0\0\0", 16), "iconv -f UTF-32LE"},
      {"a.txt", std::string("\0\0\0h\0\0\0e\0\0\0l\0\0\0l", 16), "iconv -f UTF-32BE"},
      {"a.idx", std::string("MMIDIDX\0\0", 9) + zeros, "the index of a tokenized dataset"},
      {"a b'c.zip", "PK\x03\x04" + zeros, "a b'\\''c.zip'"},
      {"a.dat", "\x01\x02\x03\x04 a few letters", "a binary file"},
  };
  for (const auto& [name, bytes, wanted] : cases) expect_in(wanted, fault(name, bytes));
}

TEST_F(FileKinds, TextIsLetThrough) {
  for (const std::string text :
       {"", "a", "PAR1 is how Parquet files begin.", "RIFF, GIF87a and BZh are magic", "h\xc3\xa9llo",
        "latin-1: caf\xe9", "\xef\xbb\xbfwith a mark", "bell \x07 in a long enough line of text",
        "\x1b[31mred\x1b[0m", "version https://example.org/spec", "7z", "PK", "\xe4\xb8\xad\xe6\x96\x87"}) {
    write_file(folder_.at("t.txt"), text);
    EXPECT_EQ(all_of(folder_.at("t.txt")), text);
  }
}

TEST_F(FileKinds, AByteOrderMarkIsDroppedFromTextAsFromJson) {
  const auto first = [&](const std::string& name, const std::string& bytes) {
    write_file(folder_.at(name), "\xef\xbb\xbf" + bytes);
    TextPiece piece;
    const auto source =
        name.ends_with(".txt") ? open_text(folder_.at(name), "") : open_jsonl(folder_.at(name), {});
    return source->next(piece) ? std::string(piece.text) : "nothing";
  };
  EXPECT_EQ(first("a.txt", "text"), "text");
  EXPECT_EQ(first("a.jsonl", "{\"text\": \"text\"}\n"), "text");
  EXPECT_EQ(first("b.txt", "\xef\xbb\xbfonce"), "\xef\xbb\xbfonce");
  EXPECT_EQ(first("c.txt", ""), "nothing");
}

TEST_F(FileKinds, JsonThatIsNotLinesGetsItsCommand) {
  const auto first_fault = [&](const std::string& name, const std::string& bytes) {
    write_file(folder_.at(name), bytes);
    return refusal([&] {
      TextPiece piece;
      open_jsonl(folder_.at(name), {})->next(piece);
    });
  };
  expect_in("holds a JSON array; one object per line is needed: jq -c '.[]' ",
            first_fault("a.json", "[\n {\"text\": \"a\"}]"));
  expect_in("a.json > " + folder_.at("a.jsonl"), first_fault("a.json", "[{\"text\": \"a\"}]"));
  expect_in("a.jsonl > " + folder_.at("a-text.jsonl"), first_fault("a.jsonl", "[{\"text\": \"a\"}]"));
  expect_in("gzip -dc ", first_fault("a.json.gz", gzipped("[{\"text\": \"a\"}]")));
  expect_in("holds JSON spread over several lines; one object per line is needed: jq -c . ",
            first_fault("a.json", "{\n  \"text\": \"a\"\n}"));
  write_file(folder_.at("b.json"), "{\"text\": \"a\"}\n");
  TextPiece piece;
  const auto source = open_jsonl(folder_.at("b.json"), {});
  ASSERT_TRUE(source->next(piece));
  EXPECT_EQ(piece.text, "a");
}

TEST(TextName, Endings) {
  using base::Compression;
  using base::TextKind;
  EXPECT_EQ(base::text_name("a/b.jsonl.gz"), (base::TextName{TextKind::Jsonl, Compression::Gzip}));
  EXPECT_EQ(base::text_name("b.ndjson"), (base::TextName{TextKind::Jsonl, Compression::None}));
  EXPECT_EQ(base::text_name("b.txt.zst"), (base::TextName{TextKind::Text, Compression::Zstd}));
  EXPECT_EQ(base::text_name("corpus"), base::TextName{});
  EXPECT_FALSE(base::names_text("corpus.parquet"));
}

}  // namespace
}  // namespace pleat::data
