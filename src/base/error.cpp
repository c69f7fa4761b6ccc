#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace pleat::base {

void invariant_broken(const char* file, int line, const char* condition, const std::string& why) {
  fmt::print(stderr, "pleat: broken invariant at {}:{}: {}{}{}\n", file, line, condition,
             why.empty() ? "" : ": ", why);
  std::fflush(stderr);
  std::abort();
}

}  // namespace pleat::base
