// One timeline type for measured and simulated steps, and what draws it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace pleat::interpret {

struct Span {
  program::StageId stage = 0;
  int64_t start_ns = 0, end_ns = 0;
};

struct Timeline {
  std::vector<Span> spans;
};

// Chrome / Perfetto JSON: one track per lane. `of` says whose it is where there are several ranks.
std::string to_chrome_json(const program::Program& program, const Timeline& timeline,
                           const std::string& of = {});
// The same for several programs, one process per node.
struct NamedTimeline {
  std::string name;
  const program::Program* program = nullptr;
  const Timeline* timeline = nullptr;
};
std::string to_chrome_json(const std::vector<NamedTimeline>& nodes);
// [{name, lane, start_us, dur_us, category}], what `pleat report` draws; with `of` each has it too.
std::string to_report_json(const program::Program& program, const Timeline& timeline,
                           const std::string& of = {});
// A standalone picture: lanes as rows, stages coloured by region.
std::string to_svg(const program::Program& program, const Timeline& timeline);

// Seconds per region of the model, without what makes codes of few bits, which is a row of its own (program::kCodesRow);
// and outside any stage.
struct Breakdown {
  std::vector<std::pair<std::string, double>> regions;
  double gaps = 0, total = 0;
};
Breakdown breakdown(const program::Program& program, const Timeline& timeline);

}  // namespace pleat::interpret
