// Fuzzes the JSONL document parser: every line gives a document or a short, printable error, nothing else.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/text_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  try {
    const std::string document = pleat::data::document_from_json(line, "text", "fuzz.jsonl:1");
    // Escapes never make text longer than they are themselves.
    if (document.size() > size) std::abort();
  } catch (const pleat::base::Error& error) {
    const std::string_view message = error.what();
    if (message.size() > 300 || !message.starts_with("fuzz.jsonl:1: ")) std::abort();
    for (const unsigned char c : message)  // letters of other scripts may stand in what is quoted
      if (c < 0x20 || c == 0x7f) std::abort();
  }
  return 0;
}
