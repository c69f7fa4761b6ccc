#include "config/rank_effect.h"

#include "base/error.h"
#include "config/quote.h"
#include "config/schema.h"

namespace pleat::config {

Condition on_ranks(RankCount ranks) {
  return {ranks == RankCount::One ? "the run has one rank" : "the run has several ranks",
          {},
          [](const Config&) { return true; },
          ranks};
}

void require_rank_effects(const Config& config, int64_t num_ranks) {
  const RankCount now = num_ranks == 1 ? RankCount::One : RankCount::Several;
  for (const Key& key : schema()) {
    if (!key.present(config) || key.get(config) == key.default_value()) continue;
    for (const Condition& condition : key.conditions)
      if (condition.ranks != RankCount::Any && condition.ranks != now &&
          !(condition.anyway && condition.anyway(config)))
        base::fail("{} = {} has no effect here: it applies when {} (now {}); change that or remove {}",
                   key.path, printable(to_text(key.get(config))), condition.text, num_ranks, key.path);
  }
}

}  // namespace pleat::config
