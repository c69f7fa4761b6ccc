// metrics.jsonl: one JSON object per step, appended and handed to the kernel line by line, so that a killed
// run leaves at most one torn line at the end. A resumed run first drops what lies after its checkpoint:
// the file always reads as one run that never stopped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "report/metrics.h"

namespace pleat::report {

class JsonlLog {
 public:
  // A new run. An existing file with content is an error: two runs must not share one log.
  static JsonlLog fresh(const std::string& path);
  // Keeps the lines up to and including `step`, drops the rest (truncate_log), then appends.
  // A missing file is made.
  static JsonlLog resumed(const std::string& path, int64_t step);
  // What truncate_log found wrong, for people.
  const std::vector<std::string>& faults() const { return faults_; }

  JsonlLog(JsonlLog&& other) noexcept;
  JsonlLog& operator=(JsonlLog&&) = delete;
  ~JsonlLog();

  // The line is with the kernel when this returns. A failed write throws ExitCode::Storage and leaves no
  // part of the line behind where the file system lets us take it back.
  void append(const StepRecord& record);
  // What was appended is on the disk when this returns.
  void sync();

 private:
  JsonlLog(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_ = -1;
  std::vector<std::string> faults_;
};

// Lines of a log that are no records are moved to the file of this name.
inline constexpr char kDamagedSuffix[] = ".damaged";

struct JsonlTail {
  int64_t num_records = 0;
  bool torn = false;                     // the last line was cut off and skipped
  std::vector<std::string> faults = {};  // of for_each_good_record: a sentence for each line left out
};

// Calls `each` for every record in file order; holds one line at a time. A last line without newline that
// does not parse is a torn write and is skipped; any other malformed line, and a step smaller than the one
// before, throws base::Error with "path:line".
JsonlTail for_each_record(const std::string& path, const std::function<void(const StepRecord&)>& each);
// The same for readers that need not have all of it: a damaged line, or one whose step is out of order, is
// left out (by the rule of truncate_log), and a sentence in `faults` names it.
JsonlTail for_each_good_record(const std::string& path, const std::function<void(const StepRecord&)>& each);
std::vector<StepRecord> read_log(const std::string& path);

// Rewrites the file (temporary file, fsync, rename) with the lines whose step is <= `step`, byte for byte. A
// log with a damaged line must not keep a run from going on: a line that is no record, or whose step is out of
// order, goes to path + kDamagedSuffix. Returns a sentence for each of them, with its line number.
std::vector<std::string> truncate_log(const std::string& path, int64_t step);

}  // namespace pleat::report
