// What ranks of one `pleat launch` have said already: many fail for one reason, and it is to be read once.
#pragma once

#include <optional>
#include <string>

namespace pleat::comm {

// A descriptor that ranks inherit from `pleat launch`: memory they share.
inline constexpr const char* kSaidVariable = "PLEAT_SAID";

// The launcher's end: the memory, for ranks of one start. Where the system gives none, descriptor() is -1, and each rank
// says everything.
class Said {
 public:
  Said();
  ~Said();
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

// A rank is about to say `text`. The rank that has said, or is just saying, the very same; nothing where this is the
// first. What is wrong with the memory makes a rank say more, not less.
std::optional<int> said_before(int descriptor, const std::string& text, int rank);

// What this process says of an error: `text`; or, as a rank of `pleat launch` of which another says the very same, one
// line that names that one.
std::string said_once(const std::string& text);

}  // namespace pleat::comm
