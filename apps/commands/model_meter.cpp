#include "commands/model_meter.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/format.h"

namespace pleat::apps {

ModelMeter::ModelMeter(std::string write, std::string stopped, bool in_training)
    : write_(std::move(write)), stopped_(std::move(stopped)) {
  if (!in_training) signal_.emplace();
}

checkpoint::StreamWatch ModelMeter::watch() {
  checkpoint::StreamWatch out;
  out.progress = [this](const checkpoint::StreamProgress& now) { show(now); };
  out.stop = [] { return train::StopSignal::asked(); };
  if (!stopped_.empty()) out.stopped = stopped_;
  return out;
}

void ModelMeter::show(const checkpoint::StreamProgress& now) {
  if (!meter_ || now.phase != last_.phase || now.done < last_.done) {
    finish();
    if (now.found > 0)
      fmt::print(stderr, "going on behind {} of {} that were written before\n",
                 report::format_bytes(double(now.found)), report::format_bytes(double(now.total)));
    meter_.emplace();
  }
  last_ = now;
  const double done = double(now.done - now.found), seconds = std::max(meter_->seconds(), 1e-3);
  meter_->show(
      done, double(now.total - now.found),
      fmt::format("{} {} of {}, {}/s", now.phase == checkpoint::StreamProgress::Write ? write_ : "checking",
                  report::format_bytes(double(now.done)), report::format_bytes(double(now.total)),
                  report::format_bytes(done / seconds)));
}

void ModelMeter::finish() {
  if (meter_) meter_->finish();
  meter_.reset();
}

checkpoint::StreamWatch quiet_watch() {
  checkpoint::StreamWatch out;
  out.stop = [] { return train::StopSignal::asked(); };
  return out;
}

}  // namespace pleat::apps
