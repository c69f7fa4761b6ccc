#include "data/text_source.h"

#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/input/byte_source.h"
#include "data/input/file_kind.h"

namespace pleat::data {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;

// The whole machine for both formats: a JSONL file is a text file split at line ends.
class SplitText final : public DocumentSource {
 public:
  SplitText(const std::string& path, const std::string& separator)
      : separator_(separator), bytes_(open_text_bytes(path)) {}

  bool next(TextPiece& piece) override {
    while (true) {
      const std::string_view view(buffer_.data() + begin_, buffer_.size() - begin_);
      if (!separator_.empty()) {
        if (const size_t at = view.find(separator_); at != std::string_view::npos) {
          begin_ += at + separator_.size();
          return give(piece, view.substr(0, at), true);
        }
      }
      if (at_end_) {
        if (view.empty() && !inside_document_) return false;
        begin_ = buffer_.size();
        return give(piece, view, true);
      }
      // The last bytes may be the beginning of a separator.
      const size_t keep = separator_.empty() ? 0 : separator_.size() - 1;
      if (view.size() > keep) {
        begin_ += view.size() - keep;
        return give(piece, view.substr(0, view.size() - keep), false);
      }
      refill();
    }
  }

  int64_t bytes_read() const override { return bytes_->bytes_read(); }

 private:
  bool give(TextPiece& piece, std::string_view text, bool ends_document) {
    piece = {text, ends_document};
    inside_document_ = !ends_document;
    return true;
  }

  void refill() {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
    const size_t old_size = buffer_.size();
    buffer_.resize(old_size + kBlockBytes);
    const size_t got = bytes_->read(std::span(buffer_).subspan(old_size));
    buffer_.resize(old_size + got);
    at_end_ = got == 0;
    // A mark that says it is UTF-8 belongs to the file, not to its text.
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    if (std::exchange(at_start_, false) && std::string_view(buffer_.data(), got).starts_with(kMark))
      begin_ = kMark.size();
  }

  std::string separator_;
  std::unique_ptr<ByteSource> bytes_;
  std::vector<char> buffer_;
  size_t begin_ = 0;
  bool at_start_ = true, at_end_ = false;
  bool inside_document_ = false;
};

class JsonlText final : public DocumentSource {
 public:
  JsonlText(const std::string& path, const JsonlOptions& options)
      : key_(options.key), lines_(path, options.max_line_bytes) {}

  bool next(TextPiece& piece) override {
    std::string_view line;
    int64_t line_number = 0;
    if (!lines_.next(line, line_number)) return false;
    document_ = document_from_json(line, key_, fmt::format("{}:{}", lines_.path(), line_number));
    piece = {document_, true};
    return true;
  }

  int64_t bytes_read() const override { return lines_.bytes_read(); }

 private:
  std::string key_;
  LineSource lines_;
  std::string document_;
};

}  // namespace

LineSource::LineSource(const std::string& path, int64_t max_line_bytes)
    : path_(path), max_line_bytes_(max_line_bytes), parts_(std::make_unique<SplitText>(path, "\n")) {
  PLEAT_CHECK(max_line_bytes > 0);
}
LineSource::~LineSource() = default;

bool LineSource::next(std::string_view& line, int64_t& line_number) {
  TextPiece part;
  line_.clear();
  while (parts_->next(part)) {
    if (part.text.size() > static_cast<size_t>(max_line_bytes_) - line_.size())
      base::fail("{}:{}: line is longer than {} bytes", path_, line_number_ + 1, max_line_bytes_);
    line_.append(part.text);
    if (!part.ends_document) continue;
    ++line_number_;
    if (line_.find_first_not_of(" \t\r") == std::string::npos) {
      line_.clear();
      continue;
    }
    if (!std::exchange(any_line_, true))
      if (const std::string advice = advice_for_json(line_, path_); !advice.empty())
        base::fail("{}: {}", path_, advice);
    line = line_;
    line_number = line_number_;
    return true;
  }
  return false;
}

int64_t LineSource::bytes_read() const { return parts_->bytes_read(); }

std::unique_ptr<DocumentSource> open_text(const std::string& path, const std::string& separator) {
  return std::make_unique<SplitText>(path, separator);
}

std::unique_ptr<DocumentSource> open_jsonl(const std::string& path, const JsonlOptions& options) {
  if (options.key.empty()) base::fail("{}: the JSONL key is empty; the name of a field is needed", path);
  return std::make_unique<JsonlText>(path, options);
}

}  // namespace pleat::data
