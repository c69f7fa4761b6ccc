// `pleat report RUN`: a run folder in, one HTML file out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pleat::report {

// Reads what read_run (report/run_data.h) describes; a missing file leaves a section that says what is
// missing and how to get it, a malformed one throws base::Error naming file and line. The page appears whole
// or not at all (temporary file, then rename).
struct WrittenReport {
  int64_t last_step = 0;                // in the log
  std::vector<std::string> log_faults;  // lines of the log that were left out, a sentence for each
};
WrittenReport write_report(const std::string& run_dir, const std::string& out_html);

}  // namespace pleat::report
