#include "tune/choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "config/quote.h"
#include "layout/from_config.h"
#include "schedule/ranks.h"
#include "tune/table.h"

namespace pleat::tune {
namespace {

// Layers in the order they are taken: the first of every chunk of every pipeline stage, then the second. In the backward
// the first layers come last, when what the others kept is gone: what is rebuilt for them lies there.
std::vector<int> layer_order(const config::Config& config) {
  std::vector<std::vector<int>> chunks;
  for (const model::Role& role : schedule::roles_of(config))
    for (const model::Chunk& chunk : role.chunks) chunks.push_back(chunk.layers);
  std::vector<int> out;
  for (size_t i = 0; out.size() < static_cast<size_t>(config.model.num_layers); ++i) {
    const size_t before = out.size();
    for (const std::vector<int>& layers : chunks)
      if (i < layers.size()) out.push_back(layers[i]);
    if (out.size() == before) break;
  }
  for (int64_t l = config.model.num_layers; l < config::num_all_layers(config); ++l)
    out.push_back(static_cast<int>(l));
  return out;
}

void set_key(config::Config& config, const std::string& path, config::Value value) {
  const config::Key* key = config::find_key(path);
  PLEAT_CHECK(key != nullptr, "no key {}", path);
  key->set(config, std::move(value));
}

bool is_named(const std::vector<std::string>& free, std::string_view key) {
  return std::find(free.begin(), free.end(), key) != free.end();
}

void require_known(const std::vector<std::string>& free) {
  std::vector<std::string_view> all;
  for (const FamilyRow& row : family_table()) {
    all.insert(all.end(), row.keys.begin(), row.keys.end());
    all.insert(all.end(), row.on_request.begin(), row.on_request.end());
  }
  for (const std::string& key : free)
    if (std::find(all.begin(), all.end(), key) == all.end())
      base::fail("--free {}: no choice of a fit sets it; those that can be let go are {}", config::quote(key),
                 fmt::join(all, ", "));
}

// Puts keys back to their defaults, as if nobody had set them.
void let_go(config::Config& config, const FamilyRow& row, const std::vector<std::string>& free) {
  for (const std::string_view path : row.defaults) {
    const std::string key{path};
    if (row.by_choice && !is_named(free, key)) continue;
    set_key(config, key, config::find_key(key)->default_value());
    config.asked.erase(key);
  }
  if (row.defaults.empty())
    for (const std::string_view key : row.keys) config.asked.erase(std::string(key));
  // What was set of a key that is gone has nothing to act on.
  for (const std::string_view path : row.defaults) {
    const std::string key{path};
    if (!config.asked.contains(key) || !config::find_key(key)->unmet(config)) continue;
    set_key(config, key, config::find_key(key)->default_value());
    config.asked.erase(key);
  }
}

// Whether a key that the user set is one that the choice sets, or says the same for several such keys.
bool is_closed_by(const Choice& choice, std::string_view key) {
  return std::any_of(choice.sets.begin(), choice.sets.end(),
                     [&](const Setting& s) { return s.key == key || stands_for(key, s.key); });
}

}  // namespace

std::string_view words_of(Numbers numbers) {
  switch (numbers) {
    case Numbers::Same:
      return "exact";
    case Numbers::Regrouped:
      return "sums regroup";
    case Numbers::Rounded:
      break;
  }
  return "numbers change";
}

int num_rounded(const Choice& choice) { return choice.numbers == Numbers::Rounded ? choice.rounds : 0; }

Space make_space(const config::Config& asked, int64_t num_ranks, const SpaceOptions& options) {
  require_known(options.free);
  Space space;
  space.base = asked;
  space.num_ranks = num_ranks;
  const auto freed = [&](const FamilyRow& row) {
    return std::any_of(row.keys.begin(), row.keys.end(),
                       [&](std::string_view key) { return is_named(options.free, key); });
  };
  for (const FamilyRow& row : family_table())
    if (freed(row)) let_go(space.base, row, options.free);
  const config::Config resolved = config::resolve(space.base);
  const Place place{layer_order(resolved),
                    schedule::fitted_mesh(resolved, schedule::layout_of(resolved, num_ranks)), options.free};
  for (const FamilyRow& row : family_table()) {
    std::vector<std::string> kept;
    for (const std::string_view key : row.keys)
      if (space.base.asked.contains(std::string(key))) kept.emplace_back(key);
    space.kept.insert(space.kept.end(), kept.begin(), kept.end());
    if (!kept.empty() && !row.by_choice) continue;
    Family family{row.name, row.keys, row.per_microbatch, row.fine, row.choices(resolved, place)};
    std::erase_if(family.choices, [&](const Choice& c) {
      return std::any_of(kept.begin(), kept.end(),
                         [&](const std::string& key) { return is_closed_by(c, key); });
    });
    const size_t all = family.choices.size();
    if (options.exact)
      std::erase_if(family.choices, [](const Choice& c) { return c.numbers != Numbers::Same; });
    if (family.choices.empty()) {
      if (all > 0) space.left_out.push_back(row.name);
      continue;
    }
    family.choices.insert(family.choices.begin(), Choice{});
    for (Choice& choice : family.choices)
      for (size_t& part : choice.parts) ++part;  // rows count from 0, and the first is now none
    space.families.push_back(std::move(family));
  }
  return space;
}

Candidate without_any(const Space& space) {
  return {std::vector<size_t>(space.families.size(), 0), std::vector<int>(space.families.size(), 0)};
}

config::Config configured(const Space& space, const Candidate& candidate) {
  config::Config config = space.base;
  for (size_t f = 0; f < space.families.size(); ++f) {
    const Choice& choice = space.families[f].choices[candidate.choice[f]];
    for (const Setting& s : choice.sets) set_key(config, s.key, s.value);
    if (choice.layers_key.empty()) continue;
    std::vector<int> layers(choice.layers.begin(), choice.layers.begin() + candidate.layers[f]);
    set_key(config, choice.layers_key,
            candidate.layers[f] == static_cast<int>(choice.layers.size())
                ? std::string("all")
                : layers_text(std::move(layers), config::num_all_layers(config)));
  }
  return config;
}

std::string text_of(const Space& space, const Candidate& candidate) {
  std::string out;
  for (size_t f = 0; f < space.families.size(); ++f) {
    if (candidate.choice[f] == 0) continue;
    const Choice& choice = space.families[f].choices[candidate.choice[f]];
    out += fmt::format("{}{}", out.empty() ? "" : "; ", choice.name);
    if (!choice.layers_key.empty() && candidate.layers[f] < static_cast<int>(choice.layers.size()))
      out += fmt::format(" {}/{}", candidate.layers[f], choice.layers.size());
  }
  return out.empty() ? "nothing" : out;
}

std::string layers_text(std::vector<int> layers, int64_t num_all_layers) {
  std::sort(layers.begin(), layers.end());
  if (static_cast<int64_t>(layers.size()) == num_all_layers) return "all";
  std::string out;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    out += out.empty() ? "" : ",";
    out += end - i == 1 ? fmt::format("{}", layers[i]) : fmt::format("{}-{}", layers[i], layers[end - 1]);
    i = end;
  }
  return out;
}

}  // namespace pleat::tune
