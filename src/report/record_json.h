// One StepRecord as one line of JSON and back. Doubles are written with the fewest digits that read back to
// the same bits. JSON has no NaN and no infinity, so those become the strings "nan", "inf" and "-inf": a bad
// number must be seen in the log, not turned into null or 0.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "report/metrics.h"

namespace pleat::report {

// A line without its newline. Never contains a raw newline.
std::string to_json_line(const StepRecord& record);

// Throws base::Error starting with `where` ("metrics.jsonl:12") when the text is no JSON object, has no
// "step", or a known key has the wrong type. Absent keys keep StepRecord's defaults; unknown keys are
// ignored, so that an older report can read a newer log.
StepRecord record_from_json_line(std::string_view line, std::string_view where);

// Throws base::Error naming `where` when brackets nest deeper than 64: the JSON library prints and frees
// values recursively, so a hostile file could exhaust the stack.
void refuse_deep_json(std::string_view text, std::string_view where);

// A number, or one of the three strings above. Throws base::Error naming `where` and `key` otherwise.
double number_from_json(const nlohmann::json& value, std::string_view where, std::string_view key);

}  // namespace pleat::report
