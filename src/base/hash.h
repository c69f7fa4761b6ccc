// Streaming SHA-256, the digest every file and state of the project is named by.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace pleat::base {

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text) { return update(std::as_bytes(std::span(text.data(), text.size()))); }
  // Of everything so far; more may be added afterwards.
  Sha256Digest digest() const;
  std::string hex() const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// 64 lower-case hex digits.
std::string to_hex(const Sha256Digest& digest);
// False unless `text` is exactly 64 lower-case hex digits.
bool from_hex(std::string_view text, Sha256Digest& out);
Sha256Digest sha256(std::span<const std::byte> bytes);
Sha256Digest sha256(std::string_view text);

}  // namespace pleat::base
