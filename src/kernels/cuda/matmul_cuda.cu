#include <cublasLt.h>

#include <cstring>
#include <optional>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/random.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_table.h"
#include "kernels/cuda/scratch.h"

namespace pleat::kernels::cuda {
namespace {

using device::cuda::Lane;

constexpr int kCandidates = 8, kRepeats = 5;

void require(cublasStatus_t code, std::string_view what) {
  if (code != CUBLAS_STATUS_SUCCESS)
    base::fail_with(base::ExitCode::Hardware, "{}: cuBLASLt says {}", what, cublasLtGetStatusName(code));
}

cudaDataType_t type_of(tensor::Dtype dtype) {
  return dtype == tensor::Dtype::BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasLtMatmulAlgo_t algorithm_of(const MatmulChoice& choice) {
  cublasLtMatmulAlgo_t algo{};
  static_assert(sizeof algo.data == sizeof choice.algorithm);
  std::memcpy(algo.data, choice.algorithm.data(), sizeof algo.data);
  return algo;
}

// Everything cuBLASLt wants to know; column-major, so the product is of the transposes: D^T = B^T A^T.
struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algo{};
  ~Plan() {
    if (out) cublasLtMatrixLayoutDestroy(out);
    if (second) cublasLtMatrixLayoutDestroy(second);
    if (first) cublasLtMatrixLayoutDestroy(first);
    if (product) cublasLtMatmulDescDestroy(product);
  }
};

// At least one, the most promising first. No std::vector: nvcc cannot destroy elements of an unnamed struct.
struct Candidates {
  cublasLtMatmulHeuristicResult_t at[kCandidates];
  int count = 0;
};

Candidates recommended(const Plan& plan, cublasLtHandle_t handle, const std::string& key) {
  cublasLtMatmulPreference_t preference = nullptr;
  require(cublasLtMatmulPreferenceCreate(&preference), key);
  const size_t workspace = kMatmulWorkspace;
  Candidates out{};
  cublasStatus_t code = cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
  if (code == CUBLAS_STATUS_SUCCESS)
    code = cublasLtMatmulAlgoGetHeuristic(handle, plan.product, plan.first, plan.second, plan.out, plan.out,
                                          preference, kCandidates, out.at, &out.count);
  cublasLtMatmulPreferenceDestroy(preference);
  require(code, key);
  if (out.count == 0) base::fail_with(base::ExitCode::Hardware, "cuBLASLt has no algorithm for {}", key);
  return out;
}

}  // namespace

CudaLaunch matmul(const Product& p, const Invocation& call, Lane& lane) {
  if (p.m == 0 || p.n == 0) return [] {};
  const Arg &a = *p.a, &b = *p.b, &d = *p.d;
  PLEAT_CHECK(a.dtype == b.dtype, "operands of a product have one type");
  const bool accumulate = d.into() == Into::Accumulate;
  PLEAT_CHECK(!(accumulate && p.c), "one of: accumulate, add c");
  auto plan = std::make_shared<Plan>();
  const auto layout = [&](cublasLtMatrixLayout_t* to, const Arg& arg, bool transposed, int64_t rows,
                          int64_t columns) {
    // Row-major [rows, columns] is column-major [columns, rows].
    const int64_t inner = transposed ? rows : columns, outer = transposed ? columns : rows;
    require(cublasLtMatrixLayoutCreate(to, type_of(arg.dtype), static_cast<uint64_t>(inner),
                                       static_cast<uint64_t>(outer), inner),
            p.what);
  };
  require(cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F), p.what);
  const cublasOperation_t first_op = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second_op = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto set = [&](cublasLtMatmulDescAttributes_t key, const auto& value) {
    require(cublasLtMatmulDescSetAttribute(plan->product, key, &value, sizeof value), p.what);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, first_op);
  set(CUBLASLT_MATMUL_DESC_TRANSB, second_op);
  if (p.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const void* bias = p.bias->data;
    const cudaDataType_t bias_type = type_of(p.bias->dtype);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
  }
  layout(&plan->first, b, p.transpose_b, p.k, p.n);
  layout(&plan->second, a, p.transpose_a, p.m, p.k);
  layout(&plan->out, d, false, p.m, p.n);
  const auto handle = static_cast<cublasLtHandle_t>(lane.cublas());
  void* const workspace = call.scratch_for(kMatmulWorkspace);

  const void* c = p.c ? p.c->data : d.data;
  const float one = 1, beta = accumulate || p.c ? 1 : 0;
  const auto run = [plan, handle, first = b.data, second = a.data, c, to = d.data, one, beta, workspace,
                    stream = lane.stream()](const cublasLtMatmulAlgo_t& algo) {
    return cublasLtMatmul(handle, plan->product, &one, first, plan->first, second, plan->second, &beta, c,
                          plan->out, to, plan->out, &algo, workspace, kMatmulWorkspace, stream);
  };

  const MatmulKey key{p.m,     p.n,     p.k,       p.transpose_a,    p.transpose_b,
                      a.dtype, d.dtype, beta != 0, p.bias != nullptr};
  MatmulChoice choice;
  if (find_choice(key, choice)) {
    plan->algo = algorithm_of(choice);
    // What a file says is a claim until the library agrees.
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t code = cublasLtMatmulAlgoCheck(handle, plan->product, plan->first, plan->second,
                                                        plan->out, plan->out, &plan->algo, &result);
    if (code != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<size_t>(kMatmulWorkspace))
      base::fail(
          "the algorithm chosen for {} is not one that cuBLASLt {} takes here ({}, workspace {} bytes of "
          "{}); "
          "needed: one measured on this device with this library",
          text_of(key), cublasLtGetVersion(), cublasLtGetStatusName(code), result.workspaceSize,
          kMatmulWorkspace);
  } else {
    const Candidates candidates = recommended(*plan, handle, text_of(key));
    choice.key = key;
    choice.what = p.what;
    size_t best = 0;
    if (lane.may_tune) {
      device::cuda::fill_random(lane, a.data, a.size(), a.dtype == tensor::Dtype::BF16, 1);
      device::cuda::fill_random(lane, b.data, b.size(), b.dtype == tensor::Dtype::BF16, 2);
      std::vector<std::optional<double>> seconds;
      for (int i = 0; i < candidates.count; ++i) {
        const cublasLtMatmulAlgo_t& algo = candidates.at[i].algo;
        bool works = true;
        const double median = device::cuda::median_seconds(
            lane, kRepeats, [&] { works = works && run(algo) == CUBLAS_STATUS_SUCCESS; });
        seconds.push_back(works ? std::optional(median) : std::nullopt);
      }
      const std::optional<size_t> first = fastest(seconds);
      if (!first)
        base::fail_with(base::ExitCode::Hardware, "none of the {} algorithms cuBLASLt recommends for {} runs",
                        candidates.count, text_of(key));
      best = *first;
      choice.tflops = 2e-12 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) /
                      *seconds[best];
    }
    std::memcpy(choice.algorithm.data(), candidates.at[best].algo.data, sizeof plan->algo.data);
    choice.workspace = static_cast<int64_t>(candidates.at[best].workspaceSize);
    plan->algo = algorithm_of(add_choice(choice, lane.may_tune));
  }
  return [run, plan, what = std::string(p.what)] { require(run(plan->algo), what); };
}

}  // namespace pleat::kernels::cuda
