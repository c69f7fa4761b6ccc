#include "checkpoint/team.h"

#include <exception>
#include <nlohmann/json.hpp>

#include "base/vfs.h"
#include "checkpoint/damage.h"

namespace pleat::checkpoint {

namespace {

using Json = nlohmann::json;

// The first letter of what is said.
constexpr char kOrder = 'o', kDone = 'd', kFailed = 'f', kAnswer = 'a';

// A failure as text, with all that whoever catches it may ask for.
std::string packed(const std::exception& error) {
  Json json = {{"text", error.what()}, {"code", static_cast<int>(base::ExitCode::Internal)}};
  if (const auto* known = dynamic_cast<const base::Error*>(&error))
    json["code"] = static_cast<int>(known->code());
  if (const auto* disk = dynamic_cast<const base::VfsError*>(&error))
    json["op"] = static_cast<int>(disk->op()), json["errno"] = disk->error_number();
  json["not_for_us"] = dynamic_cast<const NotForUs*>(&error) != nullptr;
  return kFailed + json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

[[noreturn]] void throw_packed(const std::string& text, const std::string& prefix) {
  const Json json = Json::parse(std::string_view(text).substr(1));
  std::string message = prefix + json.at("text").get<std::string>();
  if (json.contains("op"))
    throw base::VfsError(static_cast<base::VfsOp>(json.at("op").get<int>()), json.at("errno").get<int>(),
                         base::VfsError::Said{std::move(message)});
  if (json.at("not_for_us").get<bool>()) throw NotForUs(std::move(message));
  throw base::Error(static_cast<base::ExitCode>(json.at("code").get<int>()), std::move(message));
}

}  // namespace

std::string Team::answer(const std::string& order) {
  try {
    return kAnswer + work_(order);
  } catch (const std::exception& error) {
    return packed(error);
  }
}

std::vector<std::string> Team::all(const std::string& order) {
  if (size() == 1) return {work_(order)};
  peers_.tell(kOrder + order);
  std::vector<std::string> answers = peers_.gather(answer(order));
  for (size_t r = 0; r < answers.size(); ++r)
    if (answers[r].at(0) == kFailed) throw_packed(answers[r], "rank " + std::to_string(r) + ": ");
  for (std::string& a : answers) a.erase(0, 1);
  return answers;
}

std::string Team::run(const std::function<std::string()>& direct) {
  if (size() == 1) return direct();
  if (rank() == 0) {
    std::string result;
    try {
      result = direct();
    } catch (const std::exception& error) {
      try {
        peers_.tell(packed(error));
      } catch (const std::exception&) {
        // Where nobody can be told, this is why, or follows from it.
      }
      throw;
    }
    peers_.tell(kDone + result);
    return result;
  }
  while (true) {
    const std::string said = peers_.tell({});
    switch (said.at(0)) {
      case kOrder:
        peers_.gather(answer(said.substr(1)));
        break;
      case kDone:
        return said.substr(1);
      default:
        throw_packed(said, "");
    }
  }
}

}  // namespace pleat::checkpoint
