// Fuzzes files that are read as text: packed by gzip or Zstandard, or of a kind that is refused by its first
// bytes. What is read is the text, or there is a short error that begins with the file's name; memory stays
// small whatever the file unpacks to. The first byte of an input chooses the name.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/input/byte_source.h"

namespace {

class MemoryBytes final : public pleat::data::ByteSource {
 public:
  explicit MemoryBytes(std::string_view bytes) : bytes_(bytes) {}
  size_t read(std::span<char> out) override {
    const size_t count = std::min({out.size(), bytes_.size() - done_, size_t{997}});
    std::memcpy(out.data(), bytes_.data() + done_, count);
    done_ += count;
    return count;
  }
  int64_t bytes_read() const override { return static_cast<int64_t>(done_); }

 private:
  std::string_view bytes_;
  size_t done_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pleat::data;
  if (size == 0) return 0;
  constexpr const char* kNames[] = {"f.txt.gz", "f.jsonl.zst", "f.txt"};
  const std::string name = kNames[data[0] % 3];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const auto source = text_bytes(std::make_unique<MemoryBytes>(bytes), name);
    static char block[5000];
    size_t read = 0;
    // A bomb goes on for long: some megabytes of it show the rest.
    while (read < (size_t{8} << 20)) {
      const size_t got = source->read(block);
      if (got == 0) break;
      if (got > sizeof(block)) std::abort();
      read += got;
    }
    if (name == "f.txt" && read != bytes.size() && read < (size_t{8} << 20)) std::abort();
    const int64_t consumed = source->bytes_read();
    if (consumed < 0 || consumed > static_cast<int64_t>(bytes.size())) std::abort();
  } catch (const pleat::base::Error& error) {
    const std::string_view message = error.what();
    if (message.size() > 500 || !message.starts_with(name + ": ")) std::abort();
    for (const char c : message)
      if (c < 0x20 || c > 0x7e) std::abort();
  }
  return 0;
}
