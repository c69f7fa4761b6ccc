// Whether sizes make a layout, and what would.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layout/layout.h"

namespace pleat::layout {

// Positions of tp, cp, ep, dp, pp (in this numbering) in the order string; throws unless each is there once.
std::array<int, 5> parse_order(const std::string& order);

// Why the sizes make no layout, with numbers; empty when they do. Counts must be at least 1.
std::string misfit(const Sizes& sizes);

// Why optimizer_group does not cut the replicas of every weight evenly; empty when it does. The sizes must
// fit.
std::string owners_misfit(const Sizes& sizes);

// What a model says to sizes that fit the ranks: nothing where it cannot have them; else what else has to change
// for it, empty where nothing has.
using Judge = std::function<std::optional<std::string>(const Sizes&)>;

// Up to `num` settings of tp, cp, pp, ep and etp that fit the world and the model, fewest and smallest changes
// first. Without a judge every model is taken to fit.
std::vector<Sizes> nearest_fits(const Sizes& sizes, size_t num, const Judge& judge = {});

// Throws with misfit and nearest_fits.
void require_fit(const Sizes& sizes, const Judge& judge = {});

}  // namespace pleat::layout
