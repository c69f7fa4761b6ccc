// What a training step can be made smaller or faster with: families of choices that exclude each other, one row each.
//
// A choice is keys of the configuration, what they do to the numbers, and what they cost in words. The search
// (tune/search.h) knows nothing else of a technique: a new one is a row of the table in choice.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/schema.h"

namespace pleat::tune {

// What a choice does to the numbers of a run.
enum class Numbers : uint8_t {
  Same,       // to the bit
  Regrouped,  // the same formulas; sums are taken in other groups
  Rounded,    // values are kept in fewer bits, or gradients are clipped by another norm
};
std::string_view words_of(Numbers numbers);  // "exact", "sums regroup", "numbers change"

struct Setting {
  std::string key;
  config::Value value;
};

struct Choice {
  std::string name;           // for a cell of a table: "recompute norm+experts"
  std::vector<Setting> sets;  // none: as without it
  Numbers numbers = Numbers::Same;
  std::string cost;  // a sentence
  // A technique of layers: the key that names them, and which it can be in, those first that are taken first. How many
  // is searched for.
  std::string layers_key = {};
  std::vector<int> layers = {};
  // What it adds lies beside the rest of the step while there is room: a part of the layers may cost nothing.
  bool beside = false;
  // Other choices of the family that together do the same: it is estimated by them. Empty: it is tried by itself.
  std::vector<size_t> parts = {};
  // Of one that rounds: how often, each halving of a number's bits counted once.
  int rounds = 1;
};
// 0 where it leaves the numbers, or their bits, as they are.
int num_rounded(const Choice& choice);

struct Family {
  std::string_view name;
  std::vector<std::string_view> keys;  // those a user sets to decide it
  // Its bytes are kept for a microbatch: they grow with the tokens of one.
  bool per_microbatch = false;
  // Choices that differ in this alone are one row for people: the better one.
  bool fine = false;
  std::vector<Choice> choices;  // the first: without any
};

// What a search goes over: one choice of every family.
struct Space {
  config::Config base;  // as asked, and valid; families that were let go are at their defaults
  int64_t num_ranks = 1;
  std::vector<Family> families;            // open ones, those that cost least first
  std::vector<std::string> kept;           // keys that the user set: their families are closed
  std::vector<std::string_view> left_out;  // families that only --exact closes
};

struct SpaceOptions {
  bool exact = false;             // only choices whose numbers are the same
  std::vector<std::string> free;  // keys that may change although the user set them
};
// `asked` must be valid, with its vocabulary, and not resolved. Throws where `free` names what no choice sets.
Space make_space(const config::Config& asked, int64_t num_ranks, const SpaceOptions& options);

// One choice of every open family.
struct Candidate {
  std::vector<size_t> choice;
  std::vector<int> layers;  // of a technique of layers, in how many; else 0
  bool operator==(const Candidate&) const = default;
};
Candidate without_any(const Space& space);

// Not resolved and not judged: combinations may be impossible.
config::Config configured(const Space& space, const Candidate& candidate);

// "grads bf16; recompute experts 20/48", in 20 of 48 layers; "nothing" where nothing is chosen.
std::string text_of(const Space& space, const Candidate& candidate);

// Layers as recompute.layers names them: "0-3,7"; "all" where they are.
std::string layers_text(std::vector<int> layers, int64_t num_all_layers);

}  // namespace pleat::tune
