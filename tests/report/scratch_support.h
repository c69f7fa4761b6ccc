// A folder that exists as long as one test, and the shape checks several tests share.
#pragma once

#include <string>
#include <vector>

#include "report/metrics.h"
#include "report/run_data.h"

namespace pleat::report {

class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

std::string read_bytes(const std::string& path);
void write_bytes(const std::string& path, const std::string& bytes);

// A full record whose numbers need all digits of a double.
StepRecord sample_record(int64_t step);

// Empty when every tag is closed in order, every attribute is quoted and no bare & or < is left; otherwise
// what is wrong. Content of <style> and <script> is skipped.
std::string markup_fault(const std::string& markup);

// What a call throws, "" when it does not.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace pleat::report
