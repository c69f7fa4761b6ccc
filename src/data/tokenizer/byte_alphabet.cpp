#include "data/tokenizer/byte_alphabet.h"

#include <array>

#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

// Bytes that are printable in Latin-1 stand for themselves; the others follow from U+0100 on, in order.
constexpr bool stands_for_itself(uint32_t b) {
  return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

struct Alphabet {
  std::array<uint32_t, 256> character{};
  std::array<int16_t, 0x144> byte{};
  constexpr Alphabet() {
    for (int16_t& b : byte) b = -1;
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      character[b] = stands_for_itself(b) ? b : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

uint32_t byte_character(unsigned char byte) { return kAlphabet.character[byte]; }

int byte_of_character(uint32_t c) { return c < kAlphabet.byte.size() ? kAlphabet.byte[c] : -1; }

void append_byte_characters(std::string& out, std::string_view bytes) {
  for (const char b : bytes) append_code_point(out, byte_character(static_cast<unsigned char>(b)));
}

bool append_bytes_of_characters(std::string& out, std::string_view text) {
  const size_t before = out.size();
  for (size_t at = 0; at < text.size();) {
    const int byte = byte_of_character(next_code_point(text, at));
    if (byte < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace pleat::data
