// Linked in place of the other files of this folder when the build has no CUDA.
#include "base/error.h"
#include "device/cuda/chosen.h"
#include "device/cuda/code_rate.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"
#include "device/cuda/graph_clock.h"
#include "device/cuda/query.h"
#include "device/cuda/random.h"

namespace pleat::device::cuda {
namespace {
[[noreturn]] void absent() {
  base::fail("this build has no CUDA: build the preset \"cuda\", or choose device.kind = \"cpu\"");
}
}  // namespace

bool built_in() { return false; }
int num_devices(std::string* why) {
  if (why) *why = "CUDA is not built in";
  return 0;
}
Facts facts() { absent(); }
void choose_device(int) { absent(); }
int chosen_device() { return 0; }
std::string device_bus() { absent(); }
std::vector<std::string> reachable_buses() { absent(); }
void enter_device() { absent(); }
bool is_done(const Lane&) { absent(); }
int64_t context_bytes() { absent(); }
Memory::Memory(int64_t) { absent(); }
Memory::~Memory() = default;
Pinned::Pinned(int64_t) { absent(); }
Pinned::~Pinned() = default;
Event::Event(bool) { absent(); }
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
double Event::milliseconds(const Event&, const Event&) { absent(); }
Lane::Lane() { absent(); }
Lane::~Lane() = default;
void Lane::record(Event&) { absent(); }
void Lane::wait(const Event&) { absent(); }
void Lane::synchronize() { absent(); }
void Lane::copy_in(void*, const void*, int64_t) { absent(); }
void Lane::copy_out(void*, const void*, int64_t) { absent(); }
void Lane::copy(void*, const void*, int64_t) { absent(); }
void Lane::fill(void*, int, int64_t) { absent(); }
void* Lane::cublas() { absent(); }
void* Lane::cudnn() { absent(); }
Graph::~Graph() = default;
void Graph::capture(Lane&, const std::function<void()>&) { absent(); }
void Graph::launch(Lane&) { absent(); }
void GraphClock::start(Lane&) { absent(); }
void GraphClock::stop(Lane&) { absent(); }
void fill_random(Lane&, void*, int64_t, bool, uint32_t) { absent(); }
void fill_random_std(Lane&, void*, int64_t, bool, uint32_t, float) { absent(); }
void fill_normal(Lane&, void*, tensor::Dtype, const base::RandomStream&, double, std::span<const Drawn>) {
  absent();
}
double median_seconds(Lane&, int, const std::function<void()>&) { absent(); }
void push_range(const char*) {}
void pop_range() {}
double measure_copy_rate() { absent(); }
double measure_gemm_rate() { absent(); }
double measure_codes_rate() { absent(); }

}  // namespace pleat::device::cuda
