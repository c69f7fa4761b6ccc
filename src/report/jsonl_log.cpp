#include "report/jsonl_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/regular_file.h"
#include "report/record_json.h"

namespace pleat::report {

namespace {

using base::ExitCode;

[[noreturn]] void io_failed(const char* action, const std::string& path) {
  const int error = errno;
  base::fail_with(ExitCode::Storage, "cannot {} {}: {}", action, path, std::strerror(error));
}

int open_file(const std::string& path, int flags) {
  if (!(flags & O_DIRECTORY)) base::require_regular(path);
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) io_failed("open", path);
  return fd;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return true;
}

void sync_folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  const int fd = open_file(folder, O_RDONLY | O_DIRECTORY);
  const bool synced = ::fsync(fd) == 0;
  ::close(fd);
  if (!synced) io_failed("sync", folder);
}

// Hands over every complete line with its parsed record; see for_each_record for the rules.
JsonlTail scan(const std::string& path,
               const std::function<void(std::string_view line, const StepRecord&)>& each) {
  base::require_regular(path);
  std::ifstream in(path, std::ios::binary);
  if (!in) io_failed("open", path);
  JsonlTail tail;
  std::string line;
  int64_t line_number = 0, last_step = INT64_MIN;
  while (std::getline(in, line)) {
    ++line_number;
    const bool ended = !in.eof();
    const std::string where = fmt::format("{}:{}", path, line_number);
    StepRecord record;
    try {
      record = record_from_json_line(line, where);
    } catch (const base::Error&) {
      if (ended) throw;
      tail.torn = true;
      return tail;
    }
    if (record.step < last_step)
      base::fail("{}: step {} follows step {}, steps must not go back", where, record.step, last_step);
    last_step = record.step;
    ++tail.num_records;
    each(line, record);
  }
  if (in.bad()) io_failed("read", path);
  return tail;
}

bool is_record(const std::string& line) {
  try {
    record_from_json_line(line, "");
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

// Lines in file order, told apart: records whose steps never fall, and all else. Where a step falls, the line
// before may be the one that is wrong: it is when the new one fits what came before that. So one line waits.
class LineSorter {
 public:
  struct Line {
    std::string text;
    std::string where;
    int64_t step = 0;
  };
  using Good = std::function<void(const Line&)>;
  using Bad = std::function<void(const Line&, const std::string& why)>;
  LineSorter(Good good, Bad bad) : good_(std::move(good)), bad_(std::move(bad)) {}

  void add(Line line) {
    try {
      line.step = record_from_json_line(line.text, line.where).step;
    } catch (const base::Error& e) {
      return bad_(line, e.what());
    }
    if (waiting_ && line.step < waiting_->step) {
      const bool line_is_wrong = line.step <= last_;
      const Line& wrong = line_is_wrong ? line : *waiting_;
      bad_(wrong, fmt::format("{}: step {} is out of order", wrong.where, wrong.step));
      if (!line_is_wrong) *waiting_ = std::move(line);
      return;
    }
    finish();
    waiting_ = std::make_unique<Line>(std::move(line));
  }
  void finish() {
    if (!waiting_) return;
    last_ = waiting_->step;
    good_(*waiting_);
    waiting_.reset();
  }

 private:
  Good good_;
  Bad bad_;
  std::unique_ptr<Line> waiting_;
  int64_t last_ = INT64_MIN;
};

// Gives every line to `sorter` but a last one that was cut off by a stop. Returns whether there is such a one.
bool sort_lines(const std::string& path, LineSorter& sorter) {
  base::require_regular(path);
  std::ifstream in(path, std::ios::binary);
  if (!in) io_failed("open", path);
  bool torn = false;
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (in.eof() && !is_record(text)) {
      torn = true;
      break;
    }
    sorter.add({text, fmt::format("{}:{}", path, number)});
  }
  if (in.bad()) io_failed("read", path);
  sorter.finish();
  return torn;
}

}  // namespace

JsonlLog JsonlLog::fresh(const std::string& path) {
  const int fd = open_file(path, O_WRONLY | O_CREAT | O_APPEND);
  struct stat info {};
  if (::fstat(fd, &info) == 0 && info.st_size > 0) {
    ::close(fd);
    base::fail("{} already holds {} bytes of another run: resume that run or choose a new folder", path,
               info.st_size);
  }
  return {path, fd};
}

JsonlLog JsonlLog::resumed(const std::string& path, int64_t step) {
  std::vector<std::string> faults;
  if (std::filesystem::exists(path)) faults = truncate_log(path, step);
  JsonlLog log(path, open_file(path, O_WRONLY | O_CREAT | O_APPEND));
  log.faults_ = std::move(faults);
  return log;
}

JsonlLog::JsonlLog(JsonlLog&& other) noexcept
    : path_(std::move(other.path_)), fd_(other.fd_), faults_(std::move(other.faults_)) {
  other.fd_ = -1;
}

JsonlLog::~JsonlLog() {
  if (fd_ >= 0) ::close(fd_);
}

void JsonlLog::append(const StepRecord& record) {
  struct stat before {};
  if (::fstat(fd_, &before) != 0) io_failed("look at", path_);
  if (write_all(fd_, to_json_line(record) + "\n")) return;
  const int error = errno;
  const bool undone = ::ftruncate(fd_, before.st_size) == 0;
  base::fail_with(ExitCode::Storage, "cannot append step {} to {}: {}{}", record.step, path_,
                  std::strerror(error), undone ? "" : " (a torn line is left at its end)");
}

void JsonlLog::sync() {
  if (::fsync(fd_) != 0) io_failed("sync", path_);
}

JsonlTail for_each_record(const std::string& path, const std::function<void(const StepRecord&)>& each) {
  return scan(path, [&](std::string_view, const StepRecord& record) { each(record); });
}

JsonlTail for_each_good_record(const std::string& path, const std::function<void(const StepRecord&)>& each) {
  JsonlTail tail;
  LineSorter sorter(
      [&](const LineSorter::Line& line) {
        ++tail.num_records;
        each(record_from_json_line(line.text, line.where));
      },
      [&](const LineSorter::Line&, const std::string& why) { tail.faults.push_back(why); });
  tail.torn = sort_lines(path, sorter);
  return tail;
}

std::vector<StepRecord> read_log(const std::string& path) {
  std::vector<StepRecord> records;
  for_each_record(path, [&](const StepRecord& record) { records.push_back(record); });
  return records;
}

std::vector<std::string> truncate_log(const std::string& path, int64_t step) {
  const std::string temporary = path + ".tmp", aside = path + kDamagedSuffix;
  std::vector<std::string> faults;
  const int kept = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  int damaged = -1;
  const auto write_line = [&](int fd, const std::string& text, const std::string& to) {
    if (!write_all(fd, text + "\n")) io_failed("write", to);
  };
  try {
    LineSorter sorter(
        [&](const LineSorter::Line& line) {
          if (line.step <= step) write_line(kept, line.text, temporary);
        },
        [&](const LineSorter::Line& line, const std::string& why) {
          if (damaged < 0) damaged = open_file(aside, O_WRONLY | O_CREAT | O_APPEND);
          write_line(damaged, line.text, aside);
          faults.push_back(fmt::format("{}; this line of the log is kept in {}", why, aside));
        });
    sort_lines(path, sorter);  // a torn line lies after the checkpoint
    if (damaged >= 0 && ::fsync(damaged) != 0) io_failed("sync", aside);
    if (::fsync(kept) != 0) io_failed("sync", temporary);
  } catch (...) {
    if (damaged >= 0) ::close(damaged);
    ::close(kept);
    ::unlink(temporary.c_str());
    throw;
  }
  if (damaged >= 0) ::close(damaged);
  if (::close(kept) != 0) io_failed("close", temporary);
  if (::rename(temporary.c_str(), path.c_str()) != 0) io_failed("replace", path);
  sync_folder_of(path);
  return faults;
}

}  // namespace pleat::report
