#include "data/tokenizer/character_sets.h"

#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <string>

#include "base/error.h"
#include "data/tokenizer/unicode_additions.h"

namespace pleat::data {
namespace {

// In ICU's notation. Never freed: used until the last thread ends.
const icu::UnicodeSet& frozen_set(const std::string& notation) {
  UErrorCode error = U_ZERO_ERROR;
  auto* set = new icu::UnicodeSet(icu::UnicodeString::fromUTF8(notation), error);
  PLEAT_CHECK(U_SUCCESS(error), "ICU does not know the characters {}: {}", notation, u_errorName(error));
  set->freeze();
  return *set;
}

}  // namespace

bool is_number(uint32_t c) {
  static const icu::UnicodeSet& set =
      frozen_set("[[:N:]" + unicode_additions("N") + "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]");
  return set.contains(static_cast<UChar32>(c));
}

bool is_punctuation(uint32_t c) {
  static const icu::UnicodeSet& set =
      frozen_set("[[[:P:]&[:age=8.0:]]!-/\\:-@\\[-`\\{-~\\x{166d}\\x{111c9}]");
  return set.contains(static_cast<UChar32>(c));
}

bool is_combining_mark(uint32_t c) {
  static const icu::UnicodeSet& set = frozen_set("[[[[:M:]&[:age=9.0:]]\\x{1cf2}\\x{1cf3}]-[\\x{111c9}]]");
  return set.contains(static_cast<UChar32>(c));
}

uint32_t to_lower_case(uint32_t c) {
  if (c == 0x130) return c;
  const auto lower = static_cast<uint32_t>(u_tolower(static_cast<UChar32>(c)));
  if (lower != c || c < 0x1c89) return lower;
  // Letters younger than ICU's tables may be.
  if (c >= 0x10d50 && c <= 0x10d65) return c + 0x20;
  if (c >= 0x16ea0 && c <= 0x16eb8) return c + 0x1b;
  switch (c) {
    case 0x1c89:
    case 0xa7cc:
    case 0xa7ce:
    case 0xa7d2:
    case 0xa7d4:
    case 0xa7da:
      return c + 1;
    case 0xa7cb:
      return 0x264;
    case 0xa7dc:
      return 0x19b;
    default:
      return c;
  }
}

}  // namespace pleat::data
