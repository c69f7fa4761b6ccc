// The ceilings every figure is shown against, measured on the device at hand: a copy and a large product, of bf16 and of
// codes of 8 bits.
#include <cublasLt.h>

#include <algorithm>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/code_rate.h"
#include "device/cuda/cuda.h"
#include "device/cuda/random.h"

namespace pleat::device::cuda {
namespace {

__global__ void copy16(const uint4* from, uint4* to, int64_t n) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    to[i] = from[i];
}

void require(cublasStatus_t code, const char* what) {
  if (code != CUBLAS_STATUS_SUCCESS)
    base::fail_with(base::ExitCode::Hardware, "{}: {}", what, cublasLtGetStatusName(code));
}

// Codes of all sizes, none of them NaN.
__global__ void fill_codes(uint8_t* to, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    uint32_t h = (static_cast<uint32_t>(i) + seed) * 2654435761u;
    h ^= h >> 15, h *= 0x85ebca6bu, h ^= h >> 13;
    to[i] = static_cast<uint8_t>((h & 0x7f) == 0x7f ? h ^ 1 : h);
  }
}

// FLOP/s of 8192^3 from operands of `type` into bf16, the best of what the library proposes.
double product_rate(Lane& lane, const Memory& a, const Memory& b, cudaDataType_t type) {
  constexpr int64_t n = 8192;
  constexpr size_t kWorkspace = 64 << 20;
  Memory c(n * n * 2), workspace(kWorkspace);
  const auto handle = static_cast<cublasLtHandle_t>(lane.cublas());
  cublasLtMatmulDesc_t product = nullptr;
  require(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const cublasOperation_t transpose = CUBLAS_OP_T;
  require(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
          "trans");
  if (type == CUDA_R_8F_E4M3) {
    const int8_t fast = 1;
    require(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast),
            "sums");
  }
  cublasLtMatrixLayout_t from = nullptr, to = nullptr;
  require(cublasLtMatrixLayoutCreate(&from, type, n, n, n), "cublasLtMatrixLayoutCreate");
  require(cublasLtMatrixLayoutCreate(&to, CUDA_R_16BF, n, n, n), "cublasLtMatrixLayoutCreate");
  cublasLtMatmulPreference_t preference = nullptr;
  require(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  require(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspace, sizeof kWorkspace),
          "workspace");
  cublasLtMatmulHeuristicResult_t found[8];
  int num_found = 0;
  const cublasStatus_t searched =
      cublasLtMatmulAlgoGetHeuristic(handle, product, from, from, to, to, preference, 8, found, &num_found);
  if (type == CUDA_R_16BF) require(searched, "cublasLtMatmulAlgoGetHeuristic");
  double best = 0;
  const float one = 1, zero = 0;
  for (int i = 0; i < num_found; ++i) {
    const double seconds = median_seconds(lane, 9, [&] {
      require(cublasLtMatmul(handle, product, &one, a.data(), from, b.data(), from, &zero, c.data(), to,
                             c.data(), to, &found[i].algo, workspace.data(), kWorkspace, lane.stream()),
              "cublasLtMatmul");
    });
    best = std::max(best, 2.0 * n * n * n / seconds);
  }
  lane.synchronize();
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(from);
  cublasLtMatrixLayoutDestroy(to);
  cublasLtMatmulDescDestroy(product);
  return best;
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
  constexpr int64_t kSize = int64_t{8192} * 8192;
  Memory a(kSize * 2), b(kSize * 2);
  Lane lane;
  uint32_t seed = 1;
  for (Memory* m : {&a, &b}) fill_random(lane, m->data(), kSize, true, seed++);
  return product_rate(lane, a, b, CUDA_R_16BF);
}

double measure_codes_rate() {
  constexpr int64_t kSize = int64_t{8192} * 8192;
  Memory a(kSize), b(kSize);
  Lane lane;
  uint32_t seed = 1;
  for (Memory* m : {&a, &b}) {
    fill_codes<<<1024, 256, 0, lane.stream()>>>(reinterpret_cast<uint8_t*>(m->data()), kSize, seed++);
    PLEAT_CUDA_LAUNCHED();
  }
  return product_rate(lane, a, b, CUDA_R_8F_E4M3);
}

}  // namespace pleat::device::cuda
