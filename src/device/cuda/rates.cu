// The two ceilings every figure is shown against, measured on the device at hand: a copy and a large product.
#include <cublasLt.h>

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
