// A record and the shape checks that several tests share.
#pragma once

#include <string>
#include <vector>

#include "report/metrics.h"
#include "report/run_data.h"
#include "support/files.h"
#include "support/refusal.h"

namespace pleat::report {

using testing::message_of;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

// A full record whose numbers need all digits of a double.
StepRecord sample_record(int64_t step);

// Empty when every tag is closed in order, every attribute is quoted and no bare & or < is left; otherwise
// what is wrong. Content of <style> and <script> is skipped.
std::string markup_fault(const std::string& markup);

}  // namespace pleat::report
