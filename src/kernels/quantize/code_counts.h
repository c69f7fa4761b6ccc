// How numbers fared that became codes: what argument counts and argument largest of kernels that make codes get
// (program/code_rows.h). Integers and a maximum, so they do not depend on the order in which threads add.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/math/coords.h"
#include "program/code_rows.h"

namespace pleat::kernels {

// Of some numbers. 0 is none of them: its code is exact, and rows that fill up are zeros.
struct CodeCounts {
  int64_t numbers = 0, saturated = 0, flushed = 0, nan = 0;
  double largest = 0;  // finite |x|

  // x became `code` under `scale`; it counts `times`.
  template <class Format>
  void see(double x, double scale, uint32_t code, int64_t times = 1) {
    if (x == 0 || times == 0) return;
    const double size = std::abs(x);
    numbers += times;
    if (std::isfinite(size) && size > largest) largest = size;
    const uint32_t magnitude = code & (Format::kSign - 1);
    if (Format::kHasNan && magnitude >= Format::kNan)
      nan += times;
    else if (magnitude == 0)
      flushed += times;
    else if (size > Format::largest() * scale)
      saturated += times;
  }
};

// The sum over the tiles of a call. Threads add to it together.
class CodeTally {
 public:
  // With coords the ranks of a group code the same numbers, and the first of them counts. Phases without counts
  // count nothing.
  template <class Args>
  CodeTally(const Args& args, const Invocation& call) {
    if constexpr (requires { args.counts; }) {
      if (!args.counts.present) return;
      counts_ = &args.counts, out_ = &args.largest;
      counting_ = !args.coords.present || coordinate(args.coords, call) == 0;
    }
  }
  CodeTally(const CodeTally&) = delete;
  CodeTally& operator=(const CodeTally&) = delete;

  bool counting() const { return counting_; }
  void add(const CodeCounts& c) {
    const int64_t own[] = {c.numbers, c.saturated, c.flushed, c.nan};
    for (int i = 0; i < program::kNumCodeCounts; ++i) sums_[i].fetch_add(own[i], std::memory_order_relaxed);
    // Bits of numbers that are not negative are ordered as these are.
    const auto bits = std::bit_cast<uint64_t>(c.largest);
    uint64_t seen = largest_.load(std::memory_order_relaxed);
    while (bits > seen && !largest_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }
  // Once all threads are done.
  void write() const {
    if (!counts_) return;
    const bool adds = counts_->into() == Into::Accumulate, raises = out_->into() == Into::Accumulate;
    auto* counts = counts_->as<int64_t>();
    auto* largest = out_->as<double>();
    for (int i = 0; i < program::kNumCodeCounts; ++i)
      counts[i] = (adds ? counts[i] : 0) + sums_[i].load(std::memory_order_relaxed);
    const double own = std::bit_cast<double>(largest_.load(std::memory_order_relaxed));
    *largest = raises && *largest > own ? *largest : own;
  }

 private:
  const Arg *counts_ = nullptr, *out_ = nullptr;
  bool counting_ = false;
  std::atomic<int64_t> sums_[program::kNumCodeCounts]{};
  std::atomic<uint64_t> largest_{0};
};

}  // namespace pleat::kernels
