#include "data/chat/token_places.h"

#include <unicode/unorm2.h>
#include <unicode/ustring.h>

#include <algorithm>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr size_t kNowhere = std::string::npos;

size_t over_blanks(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!is_white_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

// The composed form of a text, and where each of its bytes was.
struct Composed {
  std::string text = {};
  std::vector<size_t> begins = {}, ends = {};  // of the characters it is made from; begins has one more
};

Composed compose(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const UNormalizer2* const nfc = unorm2_getNFCInstance(&status);
  if (U_FAILURE(status)) base::fail("Unicode normalization: {}", u_errorName(status));
  Composed out;
  for (size_t at = 0; at < text.size();) {
    // One character and those that may combine with it.
    const size_t begin = at;
    next_code_point(text, at);
    while (at < text.size()) {
      size_t next = at;
      if (unorm2_hasBoundaryBefore(nfc, static_cast<UChar32>(next_code_point(text, next)))) break;
      at = next;
    }
    std::string part(text.substr(begin, at - begin));
    const bool alone = part.size() == 1;
    if (!alone) {
      std::vector<UChar> in(part.size() + 1), composed(3 * part.size() + 1);
      int32_t length = 0, bytes = 0;
      u_strFromUTF8(in.data(), static_cast<int32_t>(in.size()), &length, part.data(),
                    static_cast<int32_t>(part.size()), &status);
      const int32_t count = unorm2_normalize(nfc, in.data(), length, composed.data(),
                                             static_cast<int32_t>(composed.size()), &status);
      std::string changed(static_cast<size_t>(count) * 3, '\0');
      u_strToUTF8(changed.data(), static_cast<int32_t>(changed.size()), &bytes, composed.data(), count,
                  &status);
      if (U_FAILURE(status)) base::fail("Unicode normalization: {}", u_errorName(status));
      changed.resize(static_cast<size_t>(bytes));
      if (changed != part) {
        out.begins.insert(out.begins.end(), changed.size(), begin);
        out.ends.insert(out.ends.end(), changed.size(), at);
        out.text += changed;
        continue;
      }
    }
    for (size_t i = begin; i < at; ++i) {
      out.begins.push_back(i);
      out.ends.push_back(i + 1);
    }
    out.text += part;
  }
  out.begins.push_back(text.size());
  return out;
}

}  // namespace

TokenPlacer::TokenPlacer(const TextTokenizer& tokenizer) {
  const auto count = static_cast<size_t>(tokenizer.vocab_size());
  bytes_.resize(count);
  is_added_.assign(count, false);
  for (const SpecialToken& token : tokenizer.special_tokens())
    if (token.id >= 0 && static_cast<size_t>(token.id) < count) {
      is_added_[static_cast<size_t>(token.id)] = true;
      bytes_[static_cast<size_t>(token.id)] = token.spelling;
    }
  const DecodeOptions options{.keep_broken_utf8 = true, .skip_unknown_ids = true};
  // A token in front keeps decoders from stripping the blank a piece begins with.
  int32_t front = -1;
  std::string front_text;
  for (size_t id = 0; id < count && front < 0; ++id) {
    if (is_added_[id]) continue;
    front_text = tokenizer.decode(std::vector<int32_t>{static_cast<int32_t>(id)}, options);
    if (front_text.size() == 1 && front_text[0] > ' ' && front_text[0] < 0x7f)
      front = static_cast<int32_t>(id);
  }
  for (size_t id = 0; id < count; ++id) {
    if (is_added_[id]) continue;
    if (front < 0) {
      bytes_[id] = tokenizer.decode(std::vector<int32_t>{static_cast<int32_t>(id)}, options);
      continue;
    }
    const std::string both = tokenizer.decode(std::vector<int32_t>{front, static_cast<int32_t>(id)}, options);
    bytes_[id] = both.starts_with(front_text) ? both.substr(front_text.size()) : both;
  }
  // Tokens of single bytes, which alone decode to no character.
  for (int byte = 0; byte < 256; ++byte)
    if (const auto id = tokenizer.id_of(fmt::format("<0x{:02X}>", byte));
        id && static_cast<size_t>(*id) < count && !is_added_[static_cast<size_t>(*id)] &&
        tokenizer.kind() == "hugging_face" &&
        bytes_[static_cast<size_t>(*id)] != fmt::format("<0x{:02X}>", byte))
      bytes_[static_cast<size_t>(*id)] = std::string(1, static_cast<char>(byte));
}

size_t TokenPlacer::match(std::string_view text, size_t at, int32_t id, size_t& begin) const {
  if (id < 0 || static_cast<size_t>(id) >= bytes_.size()) return kNowhere;
  const std::string& bytes = bytes_[static_cast<size_t>(id)];
  begin = at;
  if (text.substr(at).starts_with(bytes)) return at + bytes.size();
  // An added token may take the blanks before it along.
  if (is_added_[static_cast<size_t>(id)]) {
    const size_t later = over_blanks(text, at);
    return later > at && text.substr(later).starts_with(bytes) ? later + bytes.size() : kNowhere;
  }
  // A blank in front that the tokenizer added by itself.
  if (bytes.starts_with(' ') && text.substr(at).starts_with(std::string_view(bytes).substr(1)))
    return at + bytes.size() - 1;
  return kNowhere;
}

std::vector<TokenPlace> TokenPlacer::places(std::string_view text, std::span<const int32_t> ids) const {
  std::vector<TokenPlace> out = walk(text, ids);
  const auto is_certain = [](const TokenPlace& place) { return place.certain; };
  if (std::all_of(out.begin(), out.end(), is_certain)) return out;
  const Composed composed = compose(text);
  std::vector<TokenPlace> other = walk(composed.text, ids);
  if (std::count_if(other.begin(), other.end(), is_certain) <=
      std::count_if(out.begin(), out.end(), is_certain))
    return out;
  for (TokenPlace& place : other) {
    place.end = place.begin < place.end ? composed.ends[place.end - 1] : composed.begins[place.begin];
    place.begin = composed.begins[place.begin];
  }
  return other;
}

std::vector<TokenPlace> TokenPlacer::walk(std::string_view text, std::span<const int32_t> ids) const {
  std::vector<TokenPlace> out(ids.size());
  size_t at = 0;
  for (size_t i = 0; i < ids.size();) {
    size_t begin = 0;
    size_t end = match(text, at, ids[i], begin);
    if (end == kNowhere && i > 0 && is_added_[static_cast<size_t>(ids[i - 1])]) {
      // An added token may have taken the blanks behind it along.
      const size_t later = over_blanks(text, at);
      end = later > at ? match(text, later, ids[i], begin) : kNowhere;
      if (end != kNowhere) out[i - 1].end = begin;
    }
    if (end != kNowhere) {
      out[i++] = {begin, end};
      at = end;
      continue;
    }
    // Lost: the next added token is certain again.
    size_t next = i;
    while (next < ids.size() && !(ids[next] >= 0 && static_cast<size_t>(ids[next]) < is_added_.size() &&
                                  is_added_[static_cast<size_t>(ids[next])]))
      ++next;
    const size_t stop = next == ids.size()
                            ? text.size()
                            : std::min(text.find(bytes_[static_cast<size_t>(ids[next])], at), text.size());
    // From there back as far as the bytes agree.
    size_t back = next, back_at = stop;
    while (back > i) {
      const std::string& bytes = bytes_[static_cast<size_t>(ids[back - 1])];
      if (bytes.empty() || back_at < at + bytes.size() ||
          text.substr(back_at - bytes.size(), bytes.size()) != bytes)
        break;
      back_at -= bytes.size();
      --back;
      out[back] = {back_at, back_at + bytes.size()};
    }
    for (; i < back; ++i) out[i] = {at, back_at, false};
    i = next;
    at = stop;
  }
  // Zero width: the place of the character that follows.
  for (TokenPlace& place : out)
    if (place.certain && place.begin == place.end && place.begin < text.size()) {
      place.end = place.begin;
      next_code_point(text, place.end);
    }
  return out;
}

}  // namespace pleat::data
