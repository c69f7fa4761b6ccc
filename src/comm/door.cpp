#include "comm/door.h"

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/terminal_text.h"

namespace pleat::comm {
namespace {

std::string value_of(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text == nullptr ? "" : text;
}

// As an error says it.
std::string set_to(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr) return "is not set";
  return *text == 0 ? "is empty" : fmt::format("is '{}'", base::terminal_text(text));
}

int number_of(const std::string& text, const char* name, int lowest, int highest) {
  int value = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < lowest || value > highest)
    base::fail("{}='{}' in the environment; needed a whole number from {} to {}", name,
               base::terminal_text(text), lowest, highest);
  return value;
}

}  // namespace

std::string first_host(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == list.npos || comma < bracket) return list.substr(0, comma);
  const size_t close = list.find(']', bracket);
  const size_t end = list.find_first_of(",-]", bracket + 1);
  if (close == list.npos || end == bracket + 1)
    base::fail("SLURM_STEP_NODELIST='{}' in the environment: no list of machines", list);
  // What follows the bracket belongs to the name.
  const size_t name_end = list.find(',', close);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
         list.substr(close + 1, name_end == list.npos ? name_end : name_end - close - 1);
}

tcp::Door read_door(const World& world, const Environment& environment) {
  tcp::Door door;
  door.rank = world.rank;
  door.size = world.size;
  door.address = value_of(environment, "MASTER_ADDR");
  const char* const port = environment("MASTER_PORT");
  const bool slurm = world.launcher == "Slurm";
  const std::string job = value_of(environment, "SLURM_JOB_ID"),
                    step = value_of(environment, "SLURM_STEP_ID");
  if (slurm && environment("MASTER_ADDR") == nullptr) {
    std::string list = value_of(environment, "SLURM_STEP_NODELIST");
    if (list.empty()) list = value_of(environment, "SLURM_JOB_NODELIST");
    door.address = first_host(list);
  }
  if (door.address.empty() || (port == nullptr && !slurm))
    base::fail(
        "{} says this is rank {} of {}, but not where the ranks meet (MASTER_ADDR {}, MASTER_PORT {}); "
        "needed "
        "MASTER_ADDR, the machine of rank 0, and MASTER_PORT, a free port there from 1 to 65535, the same "
        "for all "
        "ranks",
        world.launcher, world.rank, world.size, set_to(environment, "MASTER_ADDR"),
        set_to(environment, "MASTER_PORT"));
  if (port != nullptr) {
    door.port = number_of(port, "MASTER_PORT", 1, 65535);
  } else {
    // Above what services take, below what systems give out; neighbours in time get other ports.
    constexpr uint64_t kFirst = 15000, kCount = 16000;
    uint64_t id = 0;
    for (const char c : job + "." + step) id = id * 131 + static_cast<unsigned char>(c);
    door.port = static_cast<int>(kFirst + id % kCount);
  }
  door.token = value_of(environment, kTokenVariable);
  if (door.token.empty() && slurm) door.token = "slurm " + job + "." + step;
  if (door.token.empty()) door.token = "run " + value_of(environment, "TORCHELASTIC_RUN_ID");
  const std::string listening = value_of(environment, kListeningVariable);
  if (world.rank == 0 && !listening.empty()) {
    door.listening = number_of(listening, kListeningVariable, 0, 1 << 20);
    if (!tcp::is_listening(door.listening))
      base::fail("{}={} in the environment: no socket that listens; `pleat launch` alone sets it, unset it",
                 kListeningVariable, door.listening);
  }
  return door;
}

tcp::Door read_door(const World& world) {
  return read_door(world, [](const char* name) { return std::getenv(name); });
}

}  // namespace pleat::comm
