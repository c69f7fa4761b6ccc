#include "data/input/file_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/text_name.h"

namespace pleat::data {
namespace {

using namespace std::string_view_literals;

// {0} in a command is the file, {1} a name to write to, without its ending, {2} the ending of text of its kind.
struct ForeignKind {
  std::string_view magic;
  size_t at;
  const char* what;
  const char* command;
};

constexpr const char* kNoText = "";

constexpr ForeignKind kForeignKinds[] = {
    {"PAR1"sv, 0, "a Parquet file",
     "python3 -c \"import json,sys,pyarrow.parquet as p;[print(json.dumps(r,default=str)) for b in "
     "p.ParquetFile(sys.argv[1]).iter_batches() for r in b.to_pylist()]\" {0} > {1}.jsonl"},
    {"ARROW1"sv, 0, "an Arrow or Feather file",
     "python3 -c \"import json,sys,pyarrow as a;f=a.ipc.open_file(sys.argv[1]);[print(json.dumps(r,default="
     "str)) for i in range(f.num_record_batches) for r in f.get_batch(i).to_pylist()]\" {0} > {1}.jsonl"},
    {"\xff\xff\xff\xff"sv, 0, "an Arrow stream",
     "python3 -c \"import json,sys,pyarrow as a;[print(json.dumps(r,default=str)) for b in "
     "a.ipc.open_stream(sys.argv[1]) for r in b.to_pylist()]\" {0} > {1}.jsonl"},
    {"PK\x03\x04"sv, 0, "a zip archive", "unzip {0}"},
    {"PK\x05\x06"sv, 0, "an empty zip archive", kNoText},
    {"\x1f\x8b"sv, 0, "a gzip file", "mv {0} {0}.gz"},
    {"\x28\xb5\x2f\xfd"sv, 0, "a Zstandard file", "mv {0} {0}.zst"},
    {"\xfd"
     "7zXZ\0"sv,
     0, "an xz file", "xz -dc {0} > {1}.jsonl"},
    {"BZh"sv, 0, "a bzip2 file", "bzip2 -dc {0} > {1}.jsonl"},
    {"\x04\x22\x4d\x18"sv, 0, "an lz4 file", "lz4 -dc {0} > {1}.jsonl"},
    {"7z\xbc\xaf\x27\x1c"sv, 0, "a 7z archive", "7z x {0}"},
    {"ustar"sv, 257, "a tar archive", "tar -xf {0}"},
    {"\x89HDF\r\n\x1a\n"sv, 0, "an HDF5 file",
     "python3 -c \"import json,sys,h5py;[print(json.dumps({{'text':r.decode()}})) for r in "
     "h5py.File(sys.argv[1])['text']]\" {0} > {1}.jsonl"},
    {"\x93NUMPY"sv, 0, "a NumPy array",
     "python3 -c \"import json,sys,numpy as n;[print(json.dumps({{'text':str(r)}})) for r in "
     "n.load(sys.argv[1])]\" {0} > {1}.jsonl"},
    {"SQLite format 3\0"sv, 0, "an SQLite database",
     "sqlite3 {0} \"select json_object('text', COLUMN) from TABLE\" > {1}.jsonl"},
    {"%PDF-1."sv, 0, "a PDF document", "pdftotext {0} {1}.txt"},
    {"\xff\xfe\0\0"sv, 0, "UTF-32 text", "iconv -f UTF-32 -t UTF-8 {0} > {1}-utf8{2}"},
    {"\0\0\xfe\xff"sv, 0, "UTF-32 text", "iconv -f UTF-32 -t UTF-8 {0} > {1}-utf8{2}"},
    {"\xff\xfe"sv, 0, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 {0} > {1}-utf8{2}"},
    {"\xfe\xff"sv, 0, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 {0} > {1}-utf8{2}"},
    {"MMIDIDX\0"sv, 0, "the index of a tokenized dataset; name its path without the ending", kNoText},
    {"\x7f"
     "ELF"sv,
     0, "a program", kNoText},
    {"\x89PNG\r\n"sv, 0, "an image", kNoText},
    {"\xff\xd8\xff"sv, 0, "an image", kNoText},
    {"GIF8"sv, 0, "an image", kNoText},
    {"RIFF"sv, 0, "an image, sound or film", kNoText},
    {"Obj\x01"sv, 0, "an Avro file",
     "python3 -c \"import json,sys,fastavro as f;[print(json.dumps(r,default=str)) for r in "
     "f.reader(open(sys.argv[1],'rb'))]\" {0} > {1}.jsonl"},
};

// Pickles run code when they are loaded: who converts one should know where it comes from.
constexpr ForeignKind kPickle = {
    ""sv, 0, "a Python pickle (loading one runs what is in it: only from who you trust)",
    "python3 -c \"import json,sys,pickle;[print(json.dumps(r,default=str)) for r in "
    "pickle.load(open(sys.argv[1],'rb'))]\" {0} > {1}.jsonl"};
constexpr ForeignKind kTorch = {
    ""sv, 0, "a torch file (loading one may run what is in it: only from who you trust)",
    "python3 -c \"import json,sys,torch;[print(json.dumps(r,default=str)) for r in "
    "torch.load(sys.argv[1])]\" {0} > {1}.jsonl"};
// By where a byte that is not zero stands among two or four.
constexpr ForeignKind kWide16[] = {
    {""sv, 0, "UTF-16 text without a mark at its front", "iconv -f UTF-16LE -t UTF-8 {0} > {1}-utf8{2}"},
    {""sv, 0, "UTF-16 text without a mark at its front", "iconv -f UTF-16BE -t UTF-8 {0} > {1}-utf8{2}"}};
constexpr ForeignKind kWide32[] = {
    {""sv, 0, "UTF-32 text without a mark at its front", "iconv -f UTF-32LE -t UTF-8 {0} > {1}-utf8{2}"},
    {""sv, 0, "UTF-32 text without a mark at its front", "iconv -f UTF-32BE -t UTF-8 {0} > {1}-utf8{2}"}};
constexpr ForeignKind kBinary = {""sv, 0, "a binary file", kNoText};

// Every second byte of plain English in UTF-16 is zero, and few others are; in UTF-32 three of four are.
const ForeignKind* wide_kind(std::string_view head) {
  size_t zeros[4] = {0, 0, 0, 0};
  for (size_t i = 0; i < head.size(); ++i) zeros[i % 4] += head[i] == '\0';
  const size_t quarter = head.size() / 4;
  if (quarter < 2) return nullptr;
  const auto mostly = [&](size_t at) { return zeros[at] * 10 > quarter * 7; };
  const auto rarely = [&](size_t at) { return zeros[at] * 10 < quarter; };
  if (rarely(0) && mostly(1) && mostly(2) && mostly(3)) return &kWide32[0];
  if (mostly(0) && mostly(1) && mostly(2) && rarely(3)) return &kWide32[1];
  if (rarely(0) && mostly(1) && rarely(2) && mostly(3)) return &kWide16[0];
  if (mostly(0) && rarely(1) && mostly(2) && rarely(3)) return &kWide16[1];
  return nullptr;
}

// Control characters that text does not have; terminals' own (escape, backspace, form feed) are let through.
bool is_strange(char c) {
  const auto b = static_cast<unsigned char>(c);
  return (b < 0x20 && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != '\b' && c != '\x1b') ||
         b == 0x7f;
}

const ForeignKind* kind_in(std::string_view head) {
  for (const ForeignKind& kind : kForeignKinds) {
    if (head.size() < kind.at || !head.substr(kind.at).starts_with(kind.magic)) continue;
    // Letters alone begin many a text: the rest must be no text either.
    const bool letters =
        std::all_of(kind.magic.begin(), kind.magic.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
    if (letters && kind.magic.size() < 7 && std::none_of(head.begin(), head.end(), is_strange)) continue;
    if (kind.magic.starts_with("PK") && head.find("/data.pkl") < 512) return &kTorch;
    return &kind;
  }
  if (head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) return &kPickle;
  if (const ForeignKind* wide = wide_kind(head)) return wide;
  if (head.find('\0') != std::string_view::npos) return &kBinary;
  const auto strange = static_cast<size_t>(std::count_if(head.begin(), head.end(), is_strange));
  return strange > 0 && strange * 20 > head.size() ? &kBinary : nullptr;
}

// A name beside the file, without endings, under which .jsonl and .txt are other files than it.
std::string name_beside(const std::string& path) {
  std::filesystem::path p(path);
  if (base::text_name(path).compression != base::Compression::None) p.replace_extension();
  const bool is_taken = p.extension() == ".jsonl" || p.extension() == ".txt";
  p.replace_extension();
  return p.string() + (is_taken ? "-text" : "");
}

// The ending of the file, where it is one of text.
std::string text_ending(const std::string& path) {
  std::filesystem::path p(path);
  const base::TextName name = base::text_name(path);
  if (name.compression != base::Compression::None) p.replace_extension();
  return name.kind == base::TextKind::None ? ".txt" : p.extension().string();
}

}  // namespace

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-/+,=@%:").find(c) != std::string_view::npos;
  });
  if (plain) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void refuse_unless_text(std::string_view head, const std::string& path, Wrapped wrapped) {
  const ForeignKind* kind = kind_in(head.substr(0, kKindBytes));
  if (kind == nullptr) return;
  if (wrapped != Wrapped::No) {
    const std::string unpack =
        fmt::format("{} -d {}", wrapped == Wrapped::Gzip ? "gzip" : "zstd", shell_word(path));
    if (std::string_view(kind->what) == "a tar archive")
      base::fail("{}: holds a tar archive; needed is text or JSONL: tar -xf {}", path, shell_word(path));
    base::fail("{}: holds {}; needed is text or JSONL. Unpack it to see what to do: {}", path, kind->what,
               unpack);
  }
  if (std::string_view(kind->command) == kNoText)
    base::fail("{}: this is {}; needed is text or JSONL", path, kind->what);
  base::fail("{}: this is {}; needed is text or JSONL: {}", path, kind->what,
             fmt::format(fmt::runtime(kind->command), shell_word(path), shell_word(name_beside(path)),
                         text_ending(path)));
}

std::string advice_for_json(std::string_view line, const std::string& path) {
  const size_t first = line.find_first_not_of(" \t\r\xef\xbb\xbf");
  if (first == std::string_view::npos) return {};
  const size_t last = line.find_last_not_of(" \t\r");
  const bool array = line[first] == '[', open_object = line[first] == '{' && first == last;
  if (!array && !open_object) return {};
  const base::Compression packed = base::text_name(path).compression;
  const std::string filter = array ? "jq -c '.[]'" : "jq -c .";
  const std::string file = shell_word(path);
  std::string command = filter + " " + file;
  if (packed == base::Compression::Gzip) command = fmt::format("gzip -dc {} | {}", file, filter);
  if (packed == base::Compression::Zstd) command = fmt::format("zstd -dc {} | {}", file, filter);
  return fmt::format("{}; one object per line is needed: {} > {}.jsonl",
                     array ? "holds a JSON array" : "holds JSON spread over several lines", command,
                     shell_word(name_beside(path)));
}

}  // namespace pleat::data
