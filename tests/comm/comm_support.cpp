#include "comm/comm_support.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <type_traits>

#include "base/hash.h"

namespace pleat::testing {

std::vector<int> all_of(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

using comm::Communicator;
using comm::Parts;
using comm::Reduce;

template <class T>
T value_at(int rank, int64_t i) {
  uint64_t h = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ULL +
               static_cast<uint64_t>(rank + 1) * 0xd1b54a32d192ed03ULL;
  h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ULL;
  h ^= h >> 32;
  if constexpr (std::is_floating_point_v<T>) {
    const double magnitude = std::ldexp(1.0, static_cast<int>(h % 40) - 20);
    return static_cast<T>((static_cast<double>(h >> 11) / 9007199254740992.0 - 0.5) * magnitude);
  } else {
    return static_cast<T>(h);  // sums wrap
  }
}

template <class T>
T reduced(const std::vector<T>& by_rank, Reduce reduce) {
  if (reduce == Reduce::Sum) {
    if constexpr (std::is_floating_point_v<T>) {
      double sum = by_rank[0];
      for (size_t r = 1; r < by_rank.size(); ++r) sum = sum + double(by_rank[r]);
      return static_cast<T>(sum);
    } else {
      uint64_t sum = 0;
      for (const T v : by_rank) sum += static_cast<uint64_t>(v);
      return static_cast<T>(sum);
    }
  }
  T best = by_rank[0];
  for (const T v : by_rank) {
    if (reduce == Reduce::Max ? v > best : v < best) best = v;
  }
  return best;
}

template float reduced(const std::vector<float>&, Reduce);
template double reduced(const std::vector<double>&, Reduce);

namespace {

class Cases {
 public:
  Cases(Communicator& c, base::Sha256& sha, Sums sums)
      : c_(c), n_(c.size()), me_(c.rank()), sha_(sha), sums_(sums) {}
  std::string fault;

  template <class T>
  void reductions(Reduce op, int64_t count, bool in_place) {
    const auto dtype = tensor::DtypeOf<T>::value;
    const std::string what =
        fmt::format("{} {} of {} in_place {}", comm::name_of(op), tensor::name_of(dtype), count, in_place);
    const std::vector<T> want = answers<T>(op, count);
    {
      std::vector<T> in = mine<T>(count), out = poison<T>(count);
      if (in_place) {
        c_.all_reduce(what, std::span<T>(in), op);
        expect_reduced(op, "all_reduce", what, in, want, 0);
      } else {
        c_.all_reduce(what, bytes_of(in), bytes_of(out), dtype, op);
        expect_reduced(op, "all_reduce", what, out, want, 0);
        expect("all_reduce's input", what, in, mine<T>(count));
      }
    }
    std::vector<int64_t> counts(static_cast<size_t>(n_), count);
    equal_or_v<T>(op, counts, in_place, true, what);
    // Uneven parts; every third rank has nothing.
    for (int r = 0; r < n_; ++r) counts[static_cast<size_t>(r)] = r % 3 == 1 ? 0 : count + 2 * r;
    equal_or_v<T>(op, counts, in_place, false, what);
  }

  void moves(int64_t bytes) {
    const std::string what = fmt::format("{} bytes", bytes);
    std::vector<int64_t> counts(static_cast<size_t>(n_), bytes);
    gather(counts, false, true, what);
    gather(counts, true, true, what);
    for (int r = 0; r < n_; ++r) counts[static_cast<size_t>(r)] = (r + n_) % 3 == 0 ? 0 : bytes + r;
    gather(counts, false, false, what);
    gather(counts, true, false, what);
    all_to_all(bytes, what);
    for (int root = 0; root < n_; ++root) {
      std::vector<uint8_t> data = me_ == root ? pattern(root, bytes) : poison<uint8_t>(bytes);
      c_.broadcast(what, bytes_of(data), root);
      expect("broadcast", what, data, pattern(root, bytes));
    }
    ring(bytes, what);
    messages(bytes, what);
    c_.barrier(what);
  }

 private:
  static std::vector<uint8_t> pattern(int rank, int64_t bytes) {
    std::vector<uint8_t> v(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < bytes; ++i)
      v[static_cast<size_t>(i)] = static_cast<uint8_t>(i * 7 + rank * 31 + 3);
    return v;
  }
  template <class T>
  static std::vector<T> poison(int64_t count) {
    std::vector<T> v(static_cast<size_t>(count));
    if (count > 0) std::memset(v.data(), 0xff, v.size() * sizeof(T));
    return v;
  }
  template <class T>
  std::vector<T> mine(int64_t count) const {
    std::vector<T> v(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] = value_at<T>(me_, i);
    return v;
  }
  template <class T>
  std::vector<T> answers(Reduce op, int64_t count) {
    std::vector<T>& all = std::get<Answers<T>>(answers_).by_op[static_cast<size_t>(op)];
    std::vector<T> column(static_cast<size_t>(n_));
    for (auto i = static_cast<int64_t>(all.size()); i < count; ++i) {
      for (int r = 0; r < n_; ++r) column[static_cast<size_t>(r)] = value_at<T>(r, i);
      all.push_back(reduced(column, op));
    }
    return std::vector<T>(all.begin(), all.begin() + count);
  }

  template <class T>
  void expect(const char* operation, const std::string& what, const std::vector<T>& got,
              const std::vector<T>& want) {
    sha_.update(bytes_of(got));
    if (fault.empty() &&
        (got.size() != want.size() ||
         (!got.empty() && std::memcmp(got.data(), want.data(), got.size() * sizeof(T)) != 0)))
      fault = fmt::format("{} ({}) on rank {} of {} gave other bytes", operation, what, me_, n_);
  }

  // `got` begins with element `first` of the whole. A native sum of n numbers rounds n - 1 times, the ordered one once.
  template <class T>
  void expect_reduced(Reduce op, const char* operation, const std::string& what, const std::vector<T>& got,
                      const std::vector<T>& want, int64_t first) {
    if (op != Reduce::Sum || sums_ == Sums::Ordered || !std::is_floating_point_v<T>)
      return expect(operation, what, got, want);
    for (size_t i = 0; i < got.size() && fault.empty(); ++i) {
      double magnitude = 0;
      for (int r = 0; r < n_; ++r)
        magnitude += std::abs(double(value_at<T>(r, first + static_cast<int64_t>(i))));
      const double allowed = n_ * double(std::numeric_limits<T>::epsilon()) / 2 * magnitude;
      if (!(std::abs(double(got[i]) - double(want[i])) <= allowed))
        fault = fmt::format("{} ({}) on rank {} of {}: element {} is {}, needed {} within {}", operation,
                            what, me_, n_, i, got[i], want[i], allowed);
    }
  }

  template <class T>
  void equal_or_v(Reduce op, const std::vector<int64_t>& counts, bool in_place, bool equal,
                  const std::string& what) {
    const auto dtype = tensor::DtypeOf<T>::value;
    const auto me = static_cast<size_t>(me_);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + me_, int64_t{0});
    const std::vector<T> all = answers<T>(op, total);
    const std::vector<T> want(all.begin() + first, all.begin() + first + counts[me]);
    std::vector<T> in = mine<T>(total), out = poison<T>(counts[me]);
    std::span<std::byte> to = bytes_of(out);
    if (in_place)
      to = bytes_of(in).subspan(static_cast<size_t>(first) * sizeof(T),
                                static_cast<size_t>(counts[me]) * sizeof(T));
    if (equal)
      c_.reduce_scatter(what, bytes_of(in), to, dtype, op);
    else
      c_.reduce_scatter_v(what, bytes_of(in), to, counts, dtype, op);
    if (in_place && !out.empty()) std::memcpy(out.data(), to.data(), to.size());
    expect_reduced(op, "reduce_scatter", what, out, want, first);
  }

  void gather(const std::vector<int64_t>& counts, bool in_place, bool equal, const std::string& what) {
    std::vector<uint8_t> want;
    int64_t first = 0;
    for (int r = 0; r < n_; ++r) {
      if (r == me_) first = static_cast<int64_t>(want.size());
      const auto part = pattern(r, counts[static_cast<size_t>(r)]);
      want.insert(want.end(), part.begin(), part.end());
    }
    const std::vector<uint8_t> in = pattern(me_, counts[static_cast<size_t>(me_)]);
    std::vector<uint8_t> out = poison<uint8_t>(static_cast<int64_t>(want.size()));
    std::span<const std::byte> from = bytes_of(in);
    if (in_place) {
      std::copy(in.begin(), in.end(), out.begin() + first);
      from = std::span<const std::byte>(bytes_of(out)).subspan(static_cast<size_t>(first), in.size());
    }
    if (equal)
      c_.all_gather(what, from, bytes_of(out));
    else
      c_.all_gather_v(what, from, bytes_of(out), counts);
    expect("all_gather", what, out, want);
  }

  // Rank a sends b + a * 3 + b * 5 bytes to rank b, nothing where (a + b) % 4 == 1; parts lie in reverse
  // order with gaps, so that offsets count.
  void all_to_all(int64_t base, const std::string& what) {
    const auto amount = [&](int a, int b) { return (a + b) % 4 == 1 ? int64_t{0} : base + a * 3 + b * 5; };
    std::vector<int64_t> send(static_cast<size_t>(n_)), send_at(send), receive(send), receive_at(send);
    int64_t in_size = 0, out_size = 0;
    for (int r = n_ - 1; r >= 0; --r) {
      const auto i = static_cast<size_t>(r);
      send[i] = amount(me_, r);
      send_at[i] = in_size;
      in_size += send[i] + 1;
      receive[i] = amount(r, me_);
      receive_at[i] = out_size;
      out_size += receive[i] + 2;
    }
    std::vector<uint8_t> in = poison<uint8_t>(in_size), out = poison<uint8_t>(out_size), want = out;
    for (int r = 0; r < n_; ++r) {
      const auto i = static_cast<size_t>(r);
      const auto sent = pattern(me_ * 16 + r, send[i]), got = pattern(r * 16 + me_, receive[i]);
      std::copy(sent.begin(), sent.end(), in.begin() + send_at[i]);
      std::copy(got.begin(), got.end(), want.begin() + receive_at[i]);
    }
    c_.all_to_all_v(what, bytes_of(in), {send, send_at}, bytes_of(out), {receive, receive_at});
    expect("all_to_all", what, out, want);
  }

  void ring(int64_t bytes, const std::string& what) {
    const int next = (me_ + 1) % n_, previous = (me_ + n_ - 1) % n_;
    const std::vector<uint8_t> out = pattern(me_, bytes);
    std::vector<uint8_t> in = poison<uint8_t>(bytes);
    c_.send_receive(what, next, bytes_of(out), previous, bytes_of(in), 5);
    expect("send_receive", what, in, pattern(previous, bytes));
    in = poison<uint8_t>(bytes);
    c_.shift(what, bytes_of(out), bytes_of(in));
    expect("shift", what, in, pattern(previous, bytes));
  }

  // Down the line, each rank changing what it hands on.
  void messages(int64_t bytes, const std::string& what) {
    std::vector<uint8_t> data = pattern(0, bytes);
    if (me_ > 0) {
      data = poison<uint8_t>(bytes);
      c_.receive(what, me_ - 1, 7, bytes_of(data));
      for (uint8_t& byte : data) byte = static_cast<uint8_t>(byte - me_);
    }
    std::vector<uint8_t> want = pattern(0, bytes);
    for (uint8_t& byte : want) byte = static_cast<uint8_t>(byte - me_ * (me_ + 1) / 2);
    expect("receive", what, data, want);
    if (me_ + 1 < n_) c_.send(what, me_ + 1, 7, bytes_of(data));
  }

  template <class T>
  struct Answers {
    std::array<std::vector<T>, 3> by_op;
  };

  Communicator& c_;
  int n_, me_;
  base::Sha256& sha_;
  Sums sums_;
  std::tuple<Answers<float>, Answers<double>, Answers<int32_t>, Answers<int64_t>> answers_;
};

template <class T>
void all_reductions(Cases& cases) {
  for (const Reduce op : {Reduce::Sum, Reduce::Max, Reduce::Min})
    for (const int64_t count : {0, 1, 37, 2051})
      for (const bool in_place : {false, true}) cases.reductions<T>(op, count, in_place);
}

}  // namespace

std::string run_cases(Communicator& c, std::string& digest, Sums sums) {
  base::Sha256 sha;
  Cases cases(c, sha, sums);
  all_reductions<float>(cases);
  all_reductions<double>(cases);
  all_reductions<int32_t>(cases);
  all_reductions<int64_t>(cases);
  for (const int64_t bytes : {0, 1, 13, 4096, 100001}) cases.moves(bytes);
  digest += sha.hex();
  return cases.fault;
}

}  // namespace pleat::testing
