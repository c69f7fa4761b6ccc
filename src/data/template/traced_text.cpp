#include "data/template/traced_text.h"

#include <algorithm>

namespace pleat::data {

TracedText::TracedText(std::string bytes, TextMark mark) : bytes_(std::move(bytes)) {
  if (!bytes_.empty() && mark != TextMark{}) runs_.push_back({bytes_.size(), mark});
}

void TracedText::append(std::string_view bytes, TextMark mark) {
  if (bytes.empty()) return;
  if (runs_.empty()) {
    if (mark == TextMark{}) {
      bytes_.append(bytes);
      return;
    }
    if (!bytes_.empty()) runs_.push_back({bytes_.size(), {}});
  }
  bytes_.append(bytes);
  if (!runs_.empty() && runs_.back().mark == mark)
    runs_.back().end = bytes_.size();
  else
    runs_.push_back({bytes_.size(), mark});
}

void TracedText::append(const TracedText& other) {
  other.for_each_run([&](size_t begin, size_t end, TextMark mark) {
    append(std::string_view(other.bytes_).substr(begin, end - begin), mark);
  });
}

TracedText TracedText::slice(size_t begin, size_t end) const {
  TracedText out;
  out.bytes_ = bytes_.substr(begin, end - begin);
  if (out.bytes_.empty() || runs_.empty()) return out;
  auto run =
      std::upper_bound(runs_.begin(), runs_.end(), begin, [](size_t at, const Run& r) { return at < r.end; });
  for (; run != runs_.end(); ++run) {
    out.runs_.push_back({std::min(run->end, end) - begin, run->mark});
    if (run->end >= end) break;
  }
  if (out.runs_.size() == 1 && out.runs_[0].mark == TextMark{}) out.runs_.clear();
  return out;
}

}  // namespace pleat::data
