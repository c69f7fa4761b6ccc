#include "train/initialize.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/hash.h"
#include "base/rng.h"
#include "model/parameters.h"
#include "tensor/halves.h"

namespace pleat::train {
namespace {

uint64_t seed_of(uint64_t seed, const std::string& name) {
  const base::Sha256Digest digest = base::sha256(name);
  uint64_t mix = 0;
  std::memcpy(&mix, digest.data(), sizeof(mix));
  return seed ^ mix;
}

template <class T>
void initialize(const model::Parameter& p, uint64_t seed, const std::vector<model::Run>& runs, T* out,
                device::Pool& pool) {
  const base::RandomStream stream(seed_of(seed, p.name), base::RandomUse::Init, 0, 0);
  constexpr int64_t kTile = 16384;
  const auto element = [](double x) {
    if constexpr (std::is_same_v<T, uint16_t>)
      return tensor::split(static_cast<float>(x)).high;
    else if constexpr (std::is_same_v<T, int16_t>)
      return tensor::split(static_cast<float>(x)).rest;
    else
      return static_cast<T>(x);
  };
  for (const model::Run& run : runs) {
    T* to = out + run.local_begin;
    if (p.init != model::Init::Normal) {
      std::fill_n(to, run.count, element(p.init == model::Init::Ones ? 1.0 : 0.0));
      continue;
    }
    pool.for_each_tile((run.count + kTile - 1) / kTile, [&](int64_t tile) {
      for (int64_t i = tile * kTile; i < std::min(run.count, (tile + 1) * kTile); ++i)
        to[i] = element(p.init_std * stream.normal(static_cast<uint64_t>(run.logical_begin + i)));
    });
  }
}

}  // namespace

void initialize_slice(const model::Parameter& p, uint64_t seed, const std::vector<model::Run>& runs,
                      tensor::Dtype dtype, std::byte* out, device::Pool& pool) {
  if (dtype == tensor::Dtype::F64) {
    initialize(p, seed, runs, reinterpret_cast<double*>(out), pool);
  } else if (dtype == tensor::Dtype::BF16) {
    initialize(p, seed, runs, reinterpret_cast<uint16_t*>(out), pool);
  } else if (dtype == tensor::Dtype::I16) {
    initialize(p, seed, runs, reinterpret_cast<int16_t*>(out), pool);
  } else {
    initialize(p, seed, runs, reinterpret_cast<float*>(out), pool);
  }
}

namespace {

struct Seeded {
  int parameter_idx = -1;
  bool rest = false;  // what its owners keep beside the weight
};

Seeded seeded(const std::string& name, const std::vector<model::Parameter>& table) {
  constexpr std::string_view kRest = model::kRest;
  const bool rest = name.ends_with(kRest);
  return {model::find_parameter(table, rest ? name.substr(0, name.size() - kRest.size()) : name), rest};
}

}  // namespace

bool comes_from_seed(const std::string& name, const std::vector<model::Parameter>& table) {
  return seeded(name, table).parameter_idx >= 0;
}

void initialize_state(const std::string& name, const std::vector<model::Parameter>& table, uint64_t seed,
                      const model::Mesh& mesh, const RankPlace& place, tensor::Dtype dtype,
                      std::span<std::byte> out, device::Pool& pool) {
  std::memset(out.data(), 0, out.size());
  const Seeded what = seeded(name, table);
  if (what.parameter_idx < 0) return;
  const model::Parameter& p = table[static_cast<size_t>(what.parameter_idx)];
  std::vector<model::Run> runs = model::local_runs(p, mesh, place.weights());
  const model::Ownership own = model::ownership(p, mesh);
  if (what.rest && own.num_owners > 1) runs = model::share_runs(runs, own, place.at(own.inside));
  initialize_slice(p, seed, runs, dtype, out.data(), pool);
}

}  // namespace pleat::train
