// The two ceilings every figure is shown against, measured on the device at hand: a copy and a large product.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/cuda.h"
#include "device/cuda/random.h"

namespace pleat::device::cuda {
namespace {

__global__ void copy16(const uint4* from, uint4* to, int64_t n) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i] = from[i];
}

__device__ float random_at(int64_t i, uint32_t seed) {
  uint64_t z = (static_cast<uint64_t>(i) + 0x9E3779B97F4A7C15ull * seed) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  const float a = static_cast<float>(static_cast<uint32_t>(z)) * 2.3283064e-10f;
  const float b = static_cast<float>(static_cast<uint32_t>(z >> 32)) * 2.3283064e-10f;
  return (a + b - 1.0f) * 2.0f;
}

// Products of zeros draw less power and run faster than real ones, so nothing is measured on them.
template <class T>
__global__ void random_numbers(T* x, int64_t n, uint32_t seed, float scale) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    x[i] = static_cast<T>(scale * random_at(i, seed));
}

void write_random(Lane& lane, void* data, int64_t n, bool is_bf16, uint32_t seed, float scale) {
  if (n == 0) return;
  if (is_bf16)
    random_numbers<<<1024, 256, 0, lane.stream()>>>(static_cast<__nv_bfloat16*>(data), n, seed, scale);
  else
    random_numbers<<<1024, 256, 0, lane.stream()>>>(static_cast<float*>(data), n, seed, scale);
  PLEAT_CUDA_LAUNCHED();
}

void require(cublasStatus_t code, const char* what) {
  if (code != CUBLAS_STATUS_SUCCESS)
    base::fail_with(base::ExitCode::Hardware, "{}: {}", what, cublasLtGetStatusName(code));
}

}  // namespace

double median_seconds(Lane& lane, int repeats, const std::function<void()>& enqueue) {
  enqueue();
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    Event begin(true), end(true);
    lane.record(begin);
    enqueue();
    lane.record(end);
    ms.push_back(Event::milliseconds(begin, end));
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2] / 1e3;
}

void fill_random(Lane& lane, void* data, int64_t n, bool is_bf16, uint32_t seed) {
  write_random(lane, data, n, is_bf16, seed, 1);
}

void fill_random_std(Lane& lane, void* data, int64_t n, bool is_bf16, uint32_t seed, float std_dev) {
  constexpr float kStd = 0.81649658f;  // of random_at: sqrt(2 / 3)
  write_random(lane, data, n, is_bf16, seed, std_dev / kStd);
}

double measure_copy_rate() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  Memory from(kBytes), to(kBytes);
  Lane lane;
  lane.fill(from.data(), 1, kBytes);
  const int sms = facts().num_sms;
  const double seconds = median_seconds(lane, 9, [&] {
    copy16<<<sms * 16, 512, 0, lane.stream()>>>(reinterpret_cast<const uint4*>(from.data()),
                                                reinterpret_cast<uint4*>(to.data()), kBytes / 16);
    PLEAT_CUDA_LAUNCHED();
  });
  return 2.0 * static_cast<double>(kBytes) / seconds;
}

double measure_gemm_rate() {
  constexpr int64_t n = 8192;
  constexpr size_t kWorkspace = 64 << 20;
  Memory a(n * n * 2), b(n * n * 2), c(n * n * 2), workspace(kWorkspace);
  Lane lane;
  uint32_t seed = 1;
  for (Memory* m : {&a, &b}) fill_random(lane, m->data(), n * n, true, seed++);
  const auto handle = static_cast<cublasLtHandle_t>(lane.cublas());
  cublasLtMatmulDesc_t product = nullptr;
  require(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t transpose = CUBLAS_OP_T;
  require(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
          "trans");
  cublasLtMatrixLayout_t layout = nullptr;
  require(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, n, n, n), "cublasLtMatrixLayoutCreate");
  cublasLtMatmulPreference_t preference = nullptr;
  require(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  require(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspace, sizeof kWorkspace),
          "workspace");
  cublasLtMatmulHeuristicResult_t found[8];
  int num_found = 0;
  require(cublasLtMatmulAlgoGetHeuristic(handle, product, layout, layout, layout, layout, preference, 8,
                                         found, &num_found),
          "cublasLtMatmulAlgoGetHeuristic");
  double best = 0;
  const float one = 1, zero = 0;
  for (int i = 0; i < num_found; ++i) {
    const double seconds = median_seconds(lane, 9, [&] {
      require(
          cublasLtMatmul(handle, product, &one, a.data(), layout, b.data(), layout, &zero, c.data(), layout,
                         c.data(), layout, &found[i].algo, workspace.data(), kWorkspace, lane.stream()),
          "cublasLtMatmul");
    });
    best = std::max(best, 2.0 * n * n * n / seconds);
  }
  lane.synchronize();
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(product);
  return best;
}

}  // namespace pleat::device::cuda
