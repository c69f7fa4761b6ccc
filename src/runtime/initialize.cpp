#include "runtime/initialize.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/hash.h"
#include "base/rng.h"
#include "device/cuda/random.h"
#include "model/parameters.h"
#include "model/state.h"
#include "tensor/short_master.h"

namespace pleat::runtime {
namespace {

uint64_t seed_of(uint64_t seed, const std::string& name) {
  const base::Sha256Digest digest = base::sha256(name);
  uint64_t mix = 0;
  std::memcpy(&mix, digest.data(), sizeof(mix));
  return seed ^ mix;
}

base::RandomStream stream_of(const model::Parameter& p, uint64_t seed) {
  return {seed_of(seed, p.name), base::RandomUse::Init, 0, 0};
}

// Calls put(place in the rank's part, number) for every number of the parameter in `runs`.
template <class Put>
void draw(const model::Parameter& p, uint64_t seed, const std::vector<model::Run>& runs, device::Pool& pool,
          Put put) {
  const base::RandomStream stream = stream_of(p, seed);
  constexpr int64_t kTile = 16384;
  const bool random = p.init == model::Init::Normal;
  const double same = p.init == model::Init::Ones ? 1.0 : 0.0;
  for (const model::Run& run : runs)
    pool.for_each_tile((run.count + kTile - 1) / kTile, [&](int64_t tile) {
      for (int64_t i = tile * kTile; i < std::min(run.count, (tile + 1) * kTile); ++i)
        put(run.local_begin + i,
            random ? p.init_std * stream.normal(static_cast<uint64_t>(run.logical_begin + i)) : same);
    });
}

template <class T>
void initialize(const model::Parameter& p, uint64_t seed, const std::vector<model::Run>& runs, T* out,
                device::Pool& pool) {
  draw(p, seed, runs, pool, [out](int64_t i, double x) {
    if constexpr (std::is_same_v<T, uint16_t>)
      out[i] = tensor::split(static_cast<float>(x)).high;
    else if constexpr (std::is_same_v<T, int16_t>)
      out[i] = tensor::split(static_cast<float>(x)).rest;
    else if constexpr (std::is_same_v<T, int8_t>)
      out[i] = tensor::short_rest(tensor::split(static_cast<float>(x)).rest);
    else
      out[i] = static_cast<T>(x);
  });
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
  } else if (dtype == tensor::Dtype::U8) {
    initialize(p, seed, runs, reinterpret_cast<int8_t*>(out), pool);
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

// What the rank holds of a weight, or of its rest, of which it may own a share.
std::vector<model::Run> held_runs(const model::Parameter& p, bool rest, const model::Mesh& mesh,
                                  const RankPlace& place) {
  const std::vector<model::Run> runs = model::local_runs(p, mesh, place.weights());
  const model::Ownership own = model::ownership(p, mesh);
  return rest && own.num_owners > 1 ? model::share_runs(runs, own, place.at(own.inside)) : runs;
}

}  // namespace

bool comes_from_seed(const std::string& name, const std::vector<model::Parameter>& table) {
  return seeded(name, table).parameter_idx >= 0;
}

void initialize_state(const std::string& name, const std::vector<model::Parameter>& table, uint64_t seed,
                      const model::Mesh& mesh, const RankPlace& place, tensor::Dtype dtype,
                      std::span<std::byte> out, device::Pool& pool, int64_t first) {
  constexpr int64_t kTile = int64_t{1} << 24;  // states of the host are tens of GiB
  const auto size = static_cast<int64_t>(out.size());
  pool.for_each_tile((size + kTile - 1) / kTile, [&](int64_t tile) {
    std::memset(out.data() + tile * kTile, 0, static_cast<size_t>(std::min(kTile, size - tile * kTile)));
  });
  const Seeded what = seeded(name, table);
  if (what.parameter_idx < 0) return;
  const model::Parameter& p = table[static_cast<size_t>(what.parameter_idx)];
  const int64_t end = first + static_cast<int64_t>(out.size()) / tensor::size_of(dtype);
  std::vector<model::Run> here;
  for (const model::Run& run : held_runs(p, what.rest, mesh, place)) {
    const int64_t from = std::max(run.local_begin, first), to = std::min(run.local_begin + run.count, end);
    if (from >= to) continue;
    model::Run part = run;
    part.logical_begin += from - run.local_begin, part.local_begin = from - first, part.count = to - from;
    here.push_back(part);
  }
  initialize_slice(p, seed, here, dtype, out.data(), pool);
}

bool draw_on_gpu(const std::string& name, const std::vector<model::Parameter>& table, uint64_t seed,
                 const model::Mesh& mesh, const RankPlace& place, tensor::Dtype dtype,
                 interpret::CudaMachine& machine, std::span<std::byte> out) {
  const Seeded what = seeded(name, table);
  if (what.parameter_idx < 0) return false;
  const model::Parameter& p = table[static_cast<size_t>(what.parameter_idx)];
  if (p.init != model::Init::Normal) return false;
  device::cuda::Lane& lane = machine.lane("compute");
  lane.fill(out.data(), 0, static_cast<int64_t>(out.size()));
  std::vector<device::cuda::Drawn> pieces;
  for (const model::Run& run : held_runs(p, what.rest, mesh, place))
    pieces.push_back({run.logical_begin, run.local_begin, run.count});
  device::cuda::fill_normal(lane, out.data(), dtype, stream_of(p, seed), p.init_std, pieces);
  return true;
}

void initialize_weights(Runtime& runtime, const config::Config& config,
                        const std::vector<model::Parameter>& table, const RankSetup& setup) {
  const uint64_t seed = static_cast<uint64_t>(config.train.seed);
  interpret::CudaMachine* machine = runtime.machine();
  for (const checkpoint::Target& t : runtime.targets()) {
    const int64_t size = t.bytes.size();
    // A GPU writes its host's memory too.
    if (machine && draw_on_gpu(t.name, table, seed, setup.mesh, setup.place, t.dtype, *machine,
                               {runtime.on_device(t.name), static_cast<size_t>(size)}))
      continue;
    if (!comes_from_seed(t.name, table) && !t.bytes.on_host()) {
      t.bytes.zero();
      continue;
    }
    t.bytes.write(0, size, [&](int64_t begin, std::span<std::byte> room) {
      initialize_state(t.name, table, seed, setup.mesh, setup.place, t.dtype, room, runtime.pool(),
                       begin / tensor::size_of(t.dtype));
    });
  }
}

}  // namespace pleat::runtime
