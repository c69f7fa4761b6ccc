// The algorithms of a run's dense products on a GPU, as they are kept: matmul_choices.json of the run's
// folder and the text "matmul_choices" of its checkpoints. A resume takes them instead of measuring anew, so
// that it gives the same bits (docs/formats.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/linear/matmul_choice.h"

namespace pleat::train {

inline constexpr const char* kMatmulChoices = "matmul_choices";  // the checkpoint's text
inline constexpr const char* kMatmulChoicesFile = "matmul_choices.json";
inline constexpr int64_t kMaxMatmulChoicesBytes = int64_t{8} << 20;

struct SavedChoices {
  kernels::MatmulMachine machine;
  std::vector<kernels::MatmulChoice> choices;  // ascending keys, each once
  bool operator==(const SavedChoices&) const = default;
};

// JSON, a line per choice.
std::string to_json(const SavedChoices& saved);
// Throws base::Error beginning with `where` on anything to_json would not have written.
SavedChoices choices_from_json(std::string_view text, std::string_view where);

// What a start does with choices kept earlier.
struct TakenChoices {
  std::vector<kernels::MatmulChoice> use;  // none: all are measured anew
  std::string line;                        // for the log
};
TakenChoices take(const SavedChoices& saved, const kernels::MatmulMachine& now, std::string_view where);

// The GPU at hand; throws where there is none.
kernels::MatmulMachine matmul_machine();
// What this process has chosen so far on it.
SavedChoices current_choices();

}  // namespace pleat::train
