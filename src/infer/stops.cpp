#include "infer/stops.h"

#include "base/error.h"

namespace pleat::infer {

Stops make_stops(const std::vector<std::string>& given, const Vocabulary& vocabulary) {
  Stops out;
  const std::vector<data::SpecialToken> special = vocabulary.special_tokens();
  for (const std::string& stop : given) {
    if (stop.empty()) base::fail("a stop string must not be empty");
    const data::SpecialToken* inside = nullptr;
    bool exact = false;
    for (const data::SpecialToken& token : special) {
      if (token.spelling.empty() || stop.find(token.spelling) == std::string::npos) continue;
      inside = &token;
      if (stop != token.spelling) continue;
      out.tokens.push_back(token.id);
      exact = true;
      break;
    }
    if (inside && !exact)
      base::fail("the stop '{}' holds the special token '{}' and more; give each as a --stop of its own",
                 stop, inside->spelling);
    // A model can also spell the token letter by letter.
    out.texts.push_back(stop);
  }
  return out;
}

}  // namespace pleat::infer
