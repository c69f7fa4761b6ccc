// A binary for x86-64-v3 ends in an illegal instruction on an older processor. This says so instead. It runs before
// anything else of the program, and is itself compiled for any x86-64 (apps/CMakeLists.txt).
#include <unistd.h>

#include <string_view>

namespace pleat::apps {
namespace {

[[gnu::constructor(101)]] void require_processor() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return;
  constexpr std::string_view text =
      "pleat: this binary needs a processor with AVX2, FMA and BMI2 (x86-64-v3), and this machine's has not "
      "all of "
      "them; build from source, which compiles for the machine at hand\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(76);
}

}  // namespace
}  // namespace pleat::apps
