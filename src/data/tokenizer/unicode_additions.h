// Characters of Unicode 15, 15.1 and 16 that PCRE2 10.42 (Unicode 14) does not know yet.
//
// The libraries whose ids must be met classify by Unicode 16; without these ranges a new ideograph or emoji
// would be cut elsewhere. With a newer PCRE2 they repeat what it knows already.
#pragma once

#include <string>
#include <string_view>

namespace pleat::data {

// The added ranges of a general category ("Lo"), of a group of them ("L") or of a script ("Han"), as the
// inside of a character class; empty where nothing was added.
std::string unicode_additions(std::string_view property);

// General categories, their groups and the scripts the table above covers.
bool is_known_category(std::string_view property);
bool is_known_script(std::string_view property);

}  // namespace pleat::data
