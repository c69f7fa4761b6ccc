// Writes TensorBoard event files without TensorFlow: TFRecord framing with masked CRC32C around hand-encoded
// Event messages. The number of keys is bounded whatever the model: a fixed set of scalars, at most
// kMaxAuxKeys auxiliary losses, one loss per depth of multi-token prediction (the config allows 16), and at
// most kMaxLayerKeys expert-load histograms.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "report/metrics.h"

namespace pleat::report {

inline constexpr int kMaxAuxKeys = 16;
inline constexpr int kMaxLayerKeys = 16;

class TensorBoardWriter {
 public:
  // Makes `folder` and a new event file in it. `resume_step` k > 0 tells TensorBoard to forget what earlier
  // files in the folder say about steps after k.
  TensorBoardWriter(const std::string& folder, int64_t resume_step);

  // Scalars for everything known in the record (a value that is kUnknown is left out of the file unless it
  // is the loss or the gradient norm: those are written as NaN), and, where the record has router health,
  // the load of up to kMaxLayerKeys layers spread evenly over the depth, as a histogram over expert index.
  // Flushed when this returns; throws base::Error with ExitCode::Storage when the file cannot be written.
  void append(const StepRecord& record, double wall_time);

  const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view event);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// The framing of one record: length, masked CRC of the length, bytes, masked CRC of the bytes.
std::string tf_record(std::string_view payload);
// CRC-32C rotated and offset the way TFRecord files store it.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace pleat::report
