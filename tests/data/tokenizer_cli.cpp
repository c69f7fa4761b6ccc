// Encodes and decodes documents with a tokenizer, for comparison with other libraries by
// tools/tokenizer_parity.py.
//
//   tokenizer_cli TOKENIZER FAMILY|- DOCUMENTS IDS TEXTS
//
// DOCUMENTS and TEXTS hold documents as uint32 length and bytes; IDS holds int32, -1 after each document.
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/utf8.h"

// Of this thread alone: other work on the machine does not count.
static double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

int main(int argc, char** argv) try {
  if (argc != 6) {
    fmt::print(stderr, "usage: tokenizer_cli TOKENIZER FAMILY|- DOCUMENTS IDS TEXTS\n");
    return 64;
  }
  const std::string family = argv[2];
  const auto tokenizer = pleat::data::open_tokenizer(argv[1], {.rank_family = family == "-" ? "" : family});
  std::ifstream in(argv[3], std::ios::binary);
  std::stringstream buffer;
  buffer << in.rdbuf();
  const std::string documents = buffer.str();
  std::ofstream ids_out(argv[4], std::ios::binary), texts_out(argv[5], std::ios::binary);
  std::vector<double> seconds;
  size_t num_bytes = 0, num_tokens = 0, num_not_round = 0;
  for (size_t at = 0; at + 4 <= documents.size();) {
    uint32_t size = 0;
    std::memcpy(&size, documents.data() + at, 4);
    const std::string_view text = std::string_view(documents).substr(at + 4, size);
    at += 4 + size;
    const double start = cpu_seconds();
    std::vector<int32_t> ids = tokenizer->encode(text);
    const double encoded = cpu_seconds();
    const std::string back = tokenizer->decode(ids, pleat::data::DecodeOptions{});
    seconds.push_back(encoded - start);
    num_bytes += text.size();
    num_tokens += ids.size();
    if (back != pleat::data::replace_broken_utf8(text)) ++num_not_round;
    ids.push_back(-1);
    ids_out.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 4));
    size = static_cast<uint32_t>(back.size());
    texts_out.write(reinterpret_cast<const char*>(&size), 4);
    texts_out.write(back.data(), static_cast<std::streamsize>(back.size()));
  }
  fmt::print("{{\"bytes\": {}, \"tokens\": {}, \"not_round\": {}, \"seconds\": [{}]}}\n", num_bytes,
             num_tokens, num_not_round, fmt::join(seconds, ", "));
  return ids_out.good() && texts_out.good() ? 0 : 74;
} catch (const std::exception& error) {
  fmt::print(stderr, "tokenizer_cli: {}\n", error.what());
  return 65;
}
