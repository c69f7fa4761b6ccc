#include "verify/noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "verify/compare.h"

namespace pleat::verify {
namespace {

// Stages that round on the way from one product to the next, the product's own store included.
constexpr double kStores = 5;
constexpr double kOver = 3;  // of a random sum over its expected length: the worst of many tensors
// Of so many numbers the measured noise is as good as its expectation: two lengths of 32 random numbers are apart by
// more than kOver once in 10^8.
constexpr size_t kMany = 32;

Tensor piece_of(const Tensor& t, size_t i, size_t num_pieces) {
  const auto size = static_cast<std::ptrdiff_t>(t.size() / num_pieces), at = static_cast<std::ptrdiff_t>(i);
  return {t.begin() + at * size, t.begin() + (at + 1) * size};
}

double relative_number(double a, double b) {
  return a == b ? 0 : std::abs(a - b) / std::max(std::abs(a), 1e-300);
}

// Layers are alike: "layers.3.attn.out.weight" -> "layers.*.attn.out.weight", "mb1.L2" -> "mb*.L*".
std::string without_numbers(const std::string& name) {
  std::string out;
  for (const char letter : name)
    if (letter < '0' || letter > '9')
      out += letter;
    else if (out.empty() || out.back() != '*')
      out += '*';
  return out;
}

}  // namespace

double apart_of(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::isfinite(sum) ? std::sqrt(sum) : INFINITY;
}

void Noise::add(const std::string& row, const std::string& name, size_t step, Tensors of, size_t num_pieces) {
  const Tensor &wide = (runs_.wide.steps[step].*of).at(name), &one = (runs_.one.steps[step].*of).at(name),
               &layout = (runs_.layout.steps[step].*of).at(name);
  const double kappa = runs_.kappa[step].at(name);
  const double mean = length_of(wide) / std::sqrt(static_cast<double>(num_pieces));
  for (size_t i = 0; i < num_pieces; ++i) {
    const Tensor a = piece_of(wide, i, num_pieces), b = piece_of(one, i, num_pieces),
                 c = piece_of(layout, i, num_pieces);
    const double length = std::max(mean, length_of(a)), per = length > 0 ? 1 / length : 1;
    const std::string which = num_pieces > 1 ? fmt::format("{}[{}]", name, i) : name;
    add_found(row, without_numbers(name), step,
              {fmt::format("{}, step {}", which, step + 1), apart_of(b, c) * per, apart_of(a, b) * per,
               kOver * kappa * runs_.apart[step], a.size(), carried(kappa)});
  }
}

void Noise::add_number(const std::string& row, size_t step, const std::string& what, double wide, double one,
                       double layout, const std::string& from, int64_t num_tokens) {
  Found most;
  for (const auto& [key, item] : items_)
    if (item.row == from && key.second == step) {
      most.noise = std::max(most.noise, item.noise);
      most.moved = std::max(most.moved, item.moved);
    }
  const double tokens = std::sqrt(static_cast<double>(std::max<int64_t>(num_tokens, 1)));
  add_found(row, row, step,
            {what, relative_number(one, layout), std::max(relative_number(wide, one), most.noise / tokens),
             most.moved, 0, 0});
}

void Noise::add_found(const std::string& row, const std::string& kind, size_t step, const Found& found) {
  const auto [it, is_new] = items_.try_emplace({kind, step});
  Item& item = it->second;
  if (is_new) item.row = row, order_.push_back({kind, step});
  item.noise = std::max(item.noise, found.noise);
  item.moved = std::max(item.moved, found.moved);
  item.numbers += found.numbers;
  item.carries = std::max(item.carries, found.carries);
  if (found.carries > 0) item.roundings = std::max(item.roundings, found.noise / found.carries);
  if (!(found.difference <= item.difference) || item.worst.empty())
    item.difference = found.difference, item.worst = found.worst;
}

double Noise::roundings_of(const std::string& row, size_t step) const {
  double squares = 0;
  int64_t kinds = 0;
  for (const auto& [key, item] : items_) {
    if (key.second != step || item.numbers < kMany || !(row.empty() || item.row == row)) continue;
    squares += item.roundings * item.roundings;
    ++kinds;
  }
  if (kinds > 0) return std::sqrt(squares / static_cast<double>(kinds));
  return row.empty() ? 0 : roundings_of("", step);
}

double Noise::noise_of(const Item& item, size_t step) const {
  if (item.numbers >= kMany || item.carries == 0) return item.noise;
  return std::max(item.noise, item.carries * roundings_of(item.row, step));
}

double Noise::factor(int64_t num_ranks) {
  return kOver * std::sqrt(1 + (kStores + static_cast<double>(num_ranks)) / kStores);
}

std::vector<PrecisionRow> Noise::rows(double factor) const {
  std::vector<PrecisionRow> out;
  for (const auto& key : order_) {
    const Item& item = items_.at(key);
    const double noise = noise_of(item, key.second);
    const PrecisionRow row{item.row,  item.worst, item.difference, noise, factor * noise + item.moved,
                           item.moved};
    const auto same = std::find_if(out.begin(), out.end(), [&](const auto& r) { return r.what == row.what; });
    if (same == out.end())
      out.push_back(row);
    else if (!(row.difference * same->bound <= same->difference * row.bound))
      *same = row;
  }
  return out;
}

}  // namespace pleat::verify
