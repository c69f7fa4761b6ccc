// What `pleat fit` says: a page for people, the same as JSON, and the configuration it writes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tune/search.h"

namespace pleat::apps {

struct FitQuestion {
  const tune::Space& space;
  const schedule::Ground& ground;
  int64_t trials = 0;  // the limits, for words
  double time_limit_s = 0;
};

// `advice`: what would have to give, or is worth a thought.
std::string fit_page(const FitQuestion& question, const tune::Answer& answer,
                     const std::vector<std::string>& advice);
nlohmann::json fit_json(const FitQuestion& question, const tune::Answer& answer,
                        const std::vector<std::string>& advice);
// The first lines of a configuration that is written: comments that say what was chosen, for what.
std::string fit_comment(const FitQuestion& question, const tune::Found& found, const std::string& path);

}  // namespace pleat::apps
