#include "report/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/error.h"
#include "report/protobuf_writer.h"

static_assert(std::endian::native == std::endian::little, "the event file format is little-endian");

namespace pleat::report {

namespace {

// Field numbers of tensorboard's event.proto and summary.proto.
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SummaryField { kValue = 1, kTag = 1, kSimpleValue = 2, kHistogram = 5 };
enum HistogramField { kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumSquares = 5, kLimits = 6, kBuckets = 7 };
constexpr int kSessionStatus = 1, kSessionStart = 1;

template <class T>
void append_raw(std::string& out, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  out.append(raw, sizeof(T));
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class Summary {
 public:
  void always(std::string_view key, double value) {
    ProtobufWriter entry;
    entry.bytes(kTag, key);
    entry.float32(kSimpleValue, static_cast<float>(value));
    out_.bytes(kValue, entry.text());
  }
  void if_known(std::string_view key, double value) {
    if (!std::isnan(value)) always(key, value);
  }
  // One bucket per expert, so that the horizontal axis of the plot is the expert index.
  void load(std::string_view key, std::span<const int64_t> load) {
    std::vector<double> limits, buckets;
    double num = 0, sum = 0, squares = 0;
    for (size_t expert = 0; expert < load.size(); ++expert) {
      const double centre = static_cast<double>(expert) + 0.5, count = static_cast<double>(load[expert]);
      limits.push_back(centre + 0.5);
      buckets.push_back(count);
      num += count;
      sum += count * centre;
      squares += count * centre * centre;
    }
    ProtobufWriter histogram;
    histogram.float64(kMin, 0.0);
    histogram.float64(kMax, static_cast<double>(load.size()));
    histogram.float64(kNum, num);
    histogram.float64(kSum, sum);
    histogram.float64(kSumSquares, squares);
    histogram.packed(kLimits, limits);
    histogram.packed(kBuckets, buckets);
    ProtobufWriter entry;
    entry.bytes(kTag, key);
    entry.bytes(kHistogram, histogram.text());
    out_.bytes(kValue, entry.text());
  }
  const std::string& text() const { return out_.text(); }

 private:
  ProtobufWriter out_;
};

void add_router(Summary& summary, std::span<const RouterHealth> layers) {
  double worst = 0, least = kUnknown, entropy = 1, cv = 0, dropped = 0, logit_max = 0, logit_rms = 0;
  double bias_min = 0, bias_max = 0;
  int64_t dead = 0;
  for (const RouterHealth& layer : layers) {
    worst = std::max(worst, layer.max_over_mean);
    least = std::fmin(least, layer.min_over_mean);
    entropy = std::min(entropy, layer.entropy);
    cv = std::max(cv, layer.cv);
    dropped = std::max(dropped, layer.dropped_share);
    // In this order a NaN logit wins over any number, and stays.
    logit_max = layer.logit_max <= logit_max ? logit_max : layer.logit_max;
    logit_rms = layer.logit_rms <= logit_rms ? logit_rms : layer.logit_rms;
    bias_min = std::min(bias_min, layer.bias_min);
    bias_max = std::max(bias_max, layer.bias_max);
    dead += layer.dead;
  }
  summary.always("router/worst_max_over_mean", worst);
  summary.always("router/worst_min_over_mean", least);
  summary.always("router/worst_entropy", entropy);
  summary.always("router/worst_cv", cv);
  summary.always("router/dead_experts", static_cast<double>(dead));
  summary.always("router/worst_dropped_share", dropped);
  summary.always("router/logit_max", logit_max);
  summary.always("router/logit_rms", logit_rms);
  summary.always("router/bias_min", bias_min);
  summary.always("router/bias_max", bias_max);

  const size_t shown = std::min<size_t>(layers.size(), kMaxLayerKeys);
  for (size_t i = 0; i < shown; ++i) {
    const RouterHealth& layer = layers[shown == 1 ? 0 : i * (layers.size() - 1) / (shown - 1)];
    if (!layer.load.empty()) summary.load(fmt::format("expert_load/layer_{:03}", layer.layer), layer.load);
  }
}

void add_codes(Summary& summary, std::span<const CodeHealth> codes) {
  if (codes.empty()) return;
  int64_t saturated = 0, nan = 0;
  for (const CodeHealth& row : codes) {
    summary.always(fmt::format("codes_flushed/{}_{}", row.module, row.side), row.share(row.flushed));
    summary.always(fmt::format("codes_largest/{}_{}", row.module, row.side), row.largest);
    saturated += row.saturated;
    nan += row.nan;
  }
  summary.always("codes/saturated", static_cast<double>(saturated));
  summary.always("codes/nan", static_cast<double>(nan));
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = base::crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

std::string tf_record(std::string_view payload) {
  std::string out;
  append_raw(out, static_cast<uint64_t>(payload.size()));
  append_raw(out, masked_crc32c(out));
  out.append(payload);
  append_raw(out, masked_crc32c(payload));
  return out;
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, int64_t resume_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) base::fail_with(base::ExitCode::Storage, "cannot make {}: {}", folder, error.message());
  char host[256] = "host";
  if (::gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "host");
  for (char& c : host)
    if (c == '/') c = '_';
  // TensorBoard reads the files of a folder in name order, so a resumed run must sort after the first one;
  // the counter keeps two writers of one second apart, and "x" never overwrites.
  const double now = now_seconds();
  for (int attempt = 0; !file_; ++attempt) {
    path_ = fmt::format("{}/events.out.tfevents.{:010}.{:03}.{}", folder, static_cast<int64_t>(now), attempt,
                        host);
    file_.reset(std::fopen(path_.c_str(), "wbxe"));
    if (!file_ && (errno != EEXIST || attempt == 999))
      base::fail_with(base::ExitCode::Storage, "cannot make {}: {}", path_, std::strerror(errno));
  }
  ProtobufWriter first;
  first.float64(kWallTime, now);
  first.bytes(kFileVersion, "brain.Event:2");
  write_record(first.text());
  if (resume_step > 0) {
    ProtobufWriter session, event;
    session.integer(kSessionStatus, kSessionStart);
    event.float64(kWallTime, now);
    event.integer(kStep, resume_step + 1);
    event.bytes(kSessionLog, session.text());
    write_record(event.text());
  }
}

void TensorBoardWriter::append(const StepRecord& record, double wall_time) {
  if (record.aux.size() > static_cast<size_t>(kMaxAuxKeys))
    base::fail("TensorBoard: {} auxiliary losses, at most {} keys", record.aux.size(), kMaxAuxKeys);
  Summary summary;
  summary.always("train/loss", record.loss);
  summary.always("train/grad_norm", record.grad_norm);
  summary.if_known("train/lr", record.lr);
  summary.if_known("train/clip_scale", record.clip_scale);
  summary.always("train/tokens", static_cast<double>(record.tokens));
  summary.always("train/refused_steps", static_cast<double>(record.refused_steps));
  for (size_t i = 0; i < record.mtp_loss.size(); ++i)
    summary.always(fmt::format("train/mtp_loss_{}", i + 1), record.mtp_loss[i]);
  for (const auto& [name, value] : record.aux) summary.always("aux/" + name, value);
  summary.if_known("speed/tokens_per_s", record.tokens_per_s);
  summary.if_known("speed/model_tflops", record.model_tflops);
  summary.if_known("speed/hardware_tflops", record.hardware_tflops);
  summary.if_known("speed/percent_of_gemm", record.percent_of_gemm);
  summary.if_known("speed/step_seconds", record.step_seconds);
  if (record.eval) {
    summary.always("eval/loss", record.eval->loss);
    summary.if_known("eval/bits_per_byte", record.eval->bits_per_byte);
  }
  if (!record.health.empty()) add_router(summary, record.health);
  add_codes(summary, record.codes);

  ProtobufWriter event;
  event.float64(kWallTime, wall_time);
  event.integer(kStep, record.step);
  event.bytes(kSummary, summary.text());
  write_record(event.text());
}

void TensorBoardWriter::write_record(std::string_view event) {
  const std::string framed = tf_record(event);
  if (std::fwrite(framed.data(), 1, framed.size(), file_.get()) != framed.size() ||
      std::fflush(file_.get()) != 0)
    base::fail_with(base::ExitCode::Storage, "cannot write {}: {}", path_, std::strerror(errno));
}

}  // namespace pleat::report
