#include "infer/text_stream.h"

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::infer {
namespace {

constexpr size_t kContextTokens = 6;
constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

size_t complete_utf8(std::string_view text) {
  // At most three bytes can wait for a fourth.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const unsigned char c = static_cast<unsigned char>(text[text.size() - back]);
    if ((c & 0xc0) == 0x80) continue;
    const size_t needed = c >= 0xf0 && c <= 0xf4 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
    return c <= 0xf4 && needed > back ? text.size() - back : text.size();
  }
  return text.size();
}

TextStream::TextStream(Decode decode, std::span<const int32_t> prompt, std::vector<std::string> stops)
    : decode_(std::move(decode)), stops_(std::move(stops)), tokens_(prompt.begin(), prompt.end()) {
  for (const std::string& stop : stops_)
    if (stop.empty()) base::fail("a stop string must not be empty");
  read_ = tokens_.size();
  context_ = read_ - std::min(read_, kContextTokens);
}

std::string TextStream::push(int32_t token) {
  if (stopped_) return "";
  tokens_.push_back(token);
  const std::span<const int32_t> all(tokens_);
  const std::string before = decode_(all.subspan(context_, read_ - context_));
  const std::string now = decode_(all.subspan(context_));
  // A tokenizer that replaces broken UTF-8 by itself shows a character that is not whole yet as U+FFFD, and a
  // token that changes the text before it is not decided yet either: both wait for the next token.
  if (now.size() < before.size() || now.compare(0, before.size(), before) != 0 ||
      (now.ends_with(kReplacement) && tokens_.size() - read_ < 4))
    return "";
  held_ += now.substr(before.size());
  context_ = read_;
  read_ = tokens_.size();

  size_t found = std::string::npos;
  for (const std::string& stop : stops_) found = std::min(found, held_.find(stop));
  if (found != std::string::npos) {
    stopped_ = true;
    held_.resize(found);
    return finish();
  }
  size_t size = complete_utf8(held_);
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > 0; --n)
      if (held_.ends_with(std::string_view(stop).substr(0, n))) {
        size = std::min(size, held_.size() - n);
        break;
      }
  return release(size);
}

std::string TextStream::finish() {
  if (!stopped_ && read_ < tokens_.size()) {
    const std::span<const int32_t> all(tokens_);
    const std::string before = decode_(all.subspan(context_, read_ - context_));
    const std::string now = decode_(all.subspan(context_));
    if (now.size() > before.size()) held_ += now.substr(before.size());
    read_ = tokens_.size();
    size_t found = held_.size();
    for (const std::string& stop : stops_) found = std::min(found, held_.find(stop));
    held_.resize(found);
  }
  return release(held_.size());
}

std::string TextStream::release(size_t size) {
  std::string out = data::replace_broken_utf8(held_.substr(0, size));
  held_.erase(0, size);
  shown_ += out;
  return out;
}

}  // namespace pleat::infer
