// Reads documents out of text and JSONL files, packed by gzip or Zstandard or not, in pieces and in constant
// memory. What is no text is refused by its first bytes (input/file_kind.h).
//
// Plain text: the whole file is one document, or the text between separators is (the separator belongs to
// none). JSONL: every line is a JSON object whose string under `key` is a document; lines of nothing but
// white space are skipped. Text is bytes: plain text is passed on unchanged, but for a byte order mark at the
// front of the file, which is dropped; JSON must be valid UTF-8.
// Documents may come out empty; the reader of a source decides what to do with them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace pleat::data {

struct TextPiece {
  std::string_view text;  // valid until the next call of next()
  bool ends_document = false;
};

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;
  // The next piece of the current document, or false after the last document.
  virtual bool next(TextPiece& piece) = 0;
  // Bytes of the file consumed so far, packed as it is.
  virtual int64_t bytes_read() const = 0;
};

// An empty separator makes the whole file one document.
std::unique_ptr<DocumentSource> open_text(const std::string& path, const std::string& separator);

struct JsonlOptions {
  std::string key = "text";
  int64_t max_line_bytes = int64_t{1} << 28;
};
std::unique_ptr<DocumentSource> open_jsonl(const std::string& path, const JsonlOptions& options);

// The lines of a JSONL file that hold more than white space, with their numbers from 1. A file whose first
// line shows that its JSON is not one object per line is refused, with the command that makes it so.
class LineSource {
 public:
  LineSource(const std::string& path, int64_t max_line_bytes = JsonlOptions{}.max_line_bytes);
  ~LineSource();
  // The line is valid until the next call.
  bool next(std::string_view& line, int64_t& line_number);
  int64_t bytes_read() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int64_t max_line_bytes_;
  std::unique_ptr<DocumentSource> parts_;
  std::string line_;
  int64_t line_number_ = 0;
  bool any_line_ = false;
};

inline constexpr int kMaxJsonDepth = 32;

// The document in one line of JSONL. Throws, with `where` (file and line) in front, when the line is broken
// JSON, nests deeper than kMaxJsonDepth, is no object, lacks the key, has it twice or holds no string there.
std::string document_from_json(std::string_view line, std::string_view key, std::string_view where);

}  // namespace pleat::data
