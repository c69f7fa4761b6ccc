#include "schedule/pipeline_order.h"

#include <algorithm>

#include "base/error.h"

namespace pleat::schedule {

std::vector<Slot> one_forward_one_backward(const PipelineShape& s) {
  std::vector<Slot> out;
  const int warm_up = std::min(s.num_ranks - s.rank - 1, s.num_microbatches);
  int next_forward = 0, next_backward = 0;
  while (next_forward < warm_up) out.push_back({true, next_forward++, 0});
  while (next_forward < s.num_microbatches) {
    out.push_back({true, next_forward++, 0});
    out.push_back({false, next_backward++, 0});
  }
  while (next_backward < s.num_microbatches) out.push_back({false, next_backward++, 0});
  return out;
}

std::vector<Slot> interleaved(const PipelineShape& s) {
  const int p = s.num_ranks, m = s.num_microbatches, v = s.num_chunks, n = s.group > 0 ? s.group : p;
  if (n < p || n > m)
    base::fail(
        "an interleaved pipeline of {} ranks needs groups of {} to {} microbatches (num_microbatches), got "
        "{}",
        p, p, m, n);
  if (m % n != 0 && m % n < p)
    base::fail(
        "{} microbatches leave a last group of {} with groups of {}: needed 0, or at least the {} ranks", m,
        m % n, n, p);
  std::vector<Slot> forwards, backwards;
  for (int begin = 0; begin < m; begin += n)
    for (int chunk = 0; chunk < v; ++chunk)
      for (int mb = begin; mb < std::min(m, begin + n); ++mb) {
        forwards.push_back({true, mb, chunk});
        backwards.push_back({false, mb, v - 1 - chunk});
      }
  const size_t total = forwards.size();
  const size_t warm_up = std::min(total, static_cast<size_t>(2 * (p - s.rank - 1) + (v - 1) * n));
  std::vector<Slot> out(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(warm_up));
  for (size_t i = warm_up; i < total; ++i) out.push_back(forwards[i]), out.push_back(backwards[i - warm_up]);
  for (size_t i = total - warm_up; i < total; ++i) out.push_back(backwards[i]);
  return out;
}

std::vector<Slot> pipeline_order(const PipelineShape& s) {
  return s.num_chunks == 1 ? one_forward_one_backward(s) : interleaved(s);
}

}  // namespace pleat::schedule
