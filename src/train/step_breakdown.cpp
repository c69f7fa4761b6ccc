#include "train/step_breakdown.h"

#include <algorithm>

#include "program/code_rows.h"

namespace pleat::train {
namespace {

constexpr const char* kClasses[] = {"attention", "router", "dispatch",  "experts",
                                    "combine",   "head",   "optimizer", "other"};

std::string class_of(const std::string& region) {
  if (region == program::name_of(program::Region::SharedExperts)) return "experts";
  if (region == program::kCodesRow) return "codes";
  const bool known = std::find(std::begin(kClasses), std::end(kClasses), region) != std::end(kClasses);
  return known ? region : "other";
}

}  // namespace

std::vector<std::pair<std::string, double>> step_breakdown(const interpret::Breakdown& timed,
                                                           double step_seconds) {
  std::vector<std::pair<std::string, double>> out;
  for (const char* name : kClasses) {
    out.emplace_back(name, 0);
    for (const auto& [region, seconds] : timed.regions)
      if (class_of(region) == name) out.back().second += seconds;
  }
  for (const auto& [region, seconds] : timed.regions)
    if (region == program::kCodesRow) out.emplace_back("codes", seconds);
  const double busy = timed.total - timed.gaps;
  out.emplace_back("host gaps", std::max(0.0, step_seconds - busy));
  return out;
}

}  // namespace pleat::train
