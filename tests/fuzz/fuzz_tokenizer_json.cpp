// Fuzzes tokenizer.json: every file is read and encodes and decodes a short text, or gives a short, printable
// error.
//
// The text is the part of the input behind the first byte 0xff, which no JSON contains; without one a fixed
// text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/tokenizer/hugging_face_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\xff');
  const std::string_view file = input.substr(0, cut);
  const std::string_view text = cut == std::string_view::npos ? "the <s>  fox'll\n\n^^^^ 12\xe4\xb8\xad"
                                                              : input.substr(cut + 1).substr(0, 200);
  try {
    const pleat::data::HuggingFaceTokenizer tokenizer(file, "fuzz.json", "");
    const auto ids = tokenizer.encode(text, pleat::data::EncodeOptions{.add_special_tokens = true});
    for (const int32_t id : ids)
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    tokenizer.decode(ids, pleat::data::DecodeOptions{.skip_special_tokens = true});
    tokenizer.decode(ids, pleat::data::DecodeOptions{.keep_broken_utf8 = true});
  } catch (const pleat::base::Error& error) {
    const std::string_view message = error.what();
    if (message.size() > 400) std::abort();
    for (const unsigned char c : message)  // letters of other scripts may stand in what is quoted
      if (c < 0x20 || c == 0x7f) std::abort();
  }
  return 0;
}
