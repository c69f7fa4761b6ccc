// Encodes and decodes documents with a tokenizer, for comparison with other libraries by
// tools/tokenizer_parity.py.
//
//   tokenizer_cli TOKENIZER FAMILY|- DOCUMENTS IDS TEXTS
//
// DOCUMENTS and TEXTS hold documents as uint32 length and bytes; IDS holds int32, -1 after each document.
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/utf8.h"

int main(int argc, char** argv) try {
  if (argc != 6) {
    fmt::print(stderr, "usage: tokenizer_cli TOKENIZER FAMILY|- DOCUMENTS IDS TEXTS\n");
    return 64;
  }
  using Clock = std::chrono::steady_clock;
  const std::string family = argv[2];
  const auto tokenizer = pleat::data::open_tokenizer(argv[1], {.rank_family = family == "-" ? "" : family});
  std::ifstream in(argv[3], std::ios::binary);
  std::stringstream buffer;
  buffer << in.rdbuf();
  const std::string documents = buffer.str();
  std::ofstream ids_out(argv[4], std::ios::binary), texts_out(argv[5], std::ios::binary);
  double encode_seconds = 0, decode_seconds = 0;
  size_t num_bytes = 0, num_tokens = 0, num_not_round = 0;
  for (size_t at = 0; at + 4 <= documents.size();) {
    uint32_t size = 0;
    std::memcpy(&size, documents.data() + at, 4);
    const std::string_view text = std::string_view(documents).substr(at + 4, size);
    at += 4 + size;
    const auto start = Clock::now();
    std::vector<int32_t> ids = tokenizer->encode(text);
    const auto encoded = Clock::now();
    const std::string back = tokenizer->decode(ids, pleat::data::DecodeOptions{});
    const auto decoded = Clock::now();
    encode_seconds += std::chrono::duration<double>(encoded - start).count();
    decode_seconds += std::chrono::duration<double>(decoded - encoded).count();
    num_bytes += text.size();
    num_tokens += ids.size();
    if (back != pleat::data::replace_broken_utf8(text)) ++num_not_round;
    ids.push_back(-1);
    ids_out.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 4));
    size = static_cast<uint32_t>(back.size());
    texts_out.write(reinterpret_cast<const char*>(&size), 4);
    texts_out.write(back.data(), static_cast<std::streamsize>(back.size()));
  }
  fmt::print(
      "{{\"bytes\": {}, \"tokens\": {}, \"encode_s\": {:.6f}, \"decode_s\": {:.6f}, \"not_round\": {}}}\n",
      num_bytes, num_tokens, encode_seconds, decode_seconds, num_not_round);
  return ids_out.good() && texts_out.good() ? 0 : 74;
} catch (const std::exception& error) {
  fmt::print(stderr, "tokenizer_cli: {}\n", error.what());
  return 65;
}
