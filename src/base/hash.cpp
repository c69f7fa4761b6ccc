#include "base/hash.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace pleat::base {

namespace {
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using ContextPtr = std::unique_ptr<EVP_MD_CTX, FreeContext>;

// Looking an algorithm up by name costs more than hashing a small block, so it is done once.
const EVP_MD* algorithm() {
  static const EVP_MD* md = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  PLEAT_CHECK(md != nullptr, "OpenSSL offers no SHA-256");
  return md;
}
}  // namespace

struct Sha256::Context {
  ContextPtr md{EVP_MD_CTX_new()};
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  PLEAT_CHECK(context_->md && EVP_DigestInit_ex2(context_->md.get(), algorithm(), nullptr) == 1);
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  PLEAT_CHECK(EVP_DigestUpdate(context_->md.get(), bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256Digest Sha256::digest() const {
  ContextPtr copy{EVP_MD_CTX_new()};
  PLEAT_CHECK(copy && EVP_MD_CTX_copy_ex(copy.get(), context_->md.get()) == 1);
  Sha256Digest out;
  unsigned size = 0;
  PLEAT_CHECK(EVP_DigestFinal_ex(copy.get(), reinterpret_cast<unsigned char*>(out.data()), &size) == 1);
  PLEAT_CHECK(size == out.size());
  return out;
}

std::string Sha256::hex() const { return to_hex(digest()); }

std::string to_hex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (std::byte b : digest) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

bool from_hex(std::string_view text, Sha256Digest& out) {
  if (text.size() != 2 * out.size()) return false;
  const auto value = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = value(text[2 * i]), low = value(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<std::byte>(high * 16 + low);
  }
  return true;
}

Sha256Digest sha256(std::span<const std::byte> bytes) { return Sha256().update(bytes).digest(); }
Sha256Digest sha256(std::string_view text) { return Sha256().update(text).digest(); }

}  // namespace pleat::base
