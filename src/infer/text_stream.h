// Tokens to text that may be shown at once: whole characters only, nothing of a stop string, and nothing that
// may yet become one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace pleat::infer {

class TextStream {
 public:
  // Text of a list of tokens; bytes that form no valid UTF-8 come out as they are where the tokenizer can.
  using Decode = std::function<std::string(std::span<const int32_t>)>;

  // `prompt` is not shown, but what follows is decoded behind it: many tokenizers spell the first token of a
  // text differently.
  TextStream(Decode decode, std::span<const int32_t> prompt, std::vector<std::string> stops);

  // What can be shown now that `token` has come.
  std::string push(int32_t token);
  // True once a stop string was found: everything from it on is left out, further tokens are ignored.
  bool stopped() const { return stopped_; }
  // What was held back and will not be completed; broken characters become U+FFFD.
  std::string finish();
  // All that was shown.
  const std::string& text() const { return shown_; }

 private:
  std::string release(size_t size);

  Decode decode_;
  std::vector<std::string> stops_;
  std::vector<int32_t> tokens_;
  size_t context_ = 0, read_ = 0;  // tokens_[context_, read_) have been turned into text
  std::string held_, shown_;
  bool stopped_ = false;
};

// Length of `text` without the start of a character at its end that more bytes could complete.
size_t complete_utf8(std::string_view text);

}  // namespace pleat::infer
