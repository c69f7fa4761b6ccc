#include <cublasLt.h>

#include <cstring>
#include <map>
#include <mutex>

#include "device/cuda/check.h"
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/workspace.h"

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

std::mutex choices_mutex;
std::map<std::string, MatmulChoice>& choices() {
  static std::map<std::string, MatmulChoice> all;
  return all;
}

// cuBLASLt's opaque choice is 64 bytes without pointers; it is written as hexadecimal digits.
std::string text_of(const cublasLtMatmulAlgo_t& algo) {
  std::string out;
  for (uint64_t word : algo.data) out += fmt::format("{:016x}", word);
  return out;
}

bool parse(const std::string& text, cublasLtMatmulAlgo_t& algo) {
  constexpr size_t kWords = sizeof(algo.data) / sizeof(algo.data[0]);
  if (text.size() != kWords * 16) return false;
  for (size_t i = 0; i < kWords; ++i) {
    const std::string word = text.substr(i * 16, 16);
    if (word.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
    algo.data[i] = std::stoull(word, nullptr, 16);
  }
  return true;
}

// Everything cuBLASLt wants to know; column-major, so the product is of the transposes: D^T = B^T A^T.
struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algo{};
  int64_t workspace = 0;
  ~Plan() {
    if (out) cublasLtMatrixLayoutDestroy(out);
    if (second) cublasLtMatrixLayoutDestroy(second);
    if (first) cublasLtMatrixLayoutDestroy(first);
    if (product) cublasLtMatmulDescDestroy(product);
  }
};

}  // namespace

CudaLaunch matmul(const Product& p, Lane& lane) {
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
  lane.need_scratch(kMatmulWorkspace);

  const void* c = p.c ? p.c->data : d.data;
  const float one = 1, beta = accumulate || p.c ? 1 : 0;
  const auto run = [plan, handle, first = b.data, second = a.data, c, to = d.data, one, beta,
                    &lane](const cublasLtMatmulAlgo_t& algo) {
    return cublasLtMatmul(handle, plan->product, &one, first, plan->first, second, plan->second, &beta, c,
                          plan->out, to, plan->out, &algo, lane.scratch(), kMatmulWorkspace, lane.stream());
  };

  static const std::string machine = [] {
    const device::cuda::Facts facts = device::cuda::facts();
    return fmt::format("{} cublas {}", facts.name, facts.cublas);
  }();
  const std::string key =
      fmt::format("{} {}x{}x{} {}{} {}->{}{}{} on {}", p.what, p.m, p.n, p.k, p.transpose_a ? 'T' : 'N',
                  p.transpose_b ? 'T' : 'N', tensor::name_of(a.dtype), tensor::name_of(d.dtype),
                  beta != 0 ? " add" : "", p.bias ? " bias" : "", machine);

  std::lock_guard lock(choices_mutex);
  auto found = choices().find(key);
  if (found == choices().end() || !parse(found->second.algorithm, plan->algo)) {
    cublasLtMatmulPreference_t preference = nullptr;
    require(cublasLtMatmulPreferenceCreate(&preference), p.what);
    const size_t workspace = kMatmulWorkspace;
    require(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace, sizeof workspace),
            p.what);
    cublasLtMatmulHeuristicResult_t results[kCandidates];
    int num_results = 0;
    const cublasStatus_t code =
        cublasLtMatmulAlgoGetHeuristic(handle, plan->product, plan->first, plan->second, plan->out, plan->out,
                                       preference, kCandidates, results, &num_results);
    cublasLtMatmulPreferenceDestroy(preference);
    require(code, p.what);
    if (num_results == 0) base::fail_with(base::ExitCode::Hardware, "cuBLASLt has no algorithm for {}", key);
    int best = 0;
    double best_seconds = 0;
    if (lane.may_tune) {
      device::cuda::fill_random(lane, a.data, a.size(), a.dtype == tensor::Dtype::BF16, 1);
      device::cuda::fill_random(lane, b.data, b.size(), b.dtype == tensor::Dtype::BF16, 2);
      for (int i = 0; i < num_results; ++i) {
        bool works = true;
        const double seconds = device::cuda::median_seconds(
            lane, kRepeats, [&] { works = run(results[i].algo) == CUBLAS_STATUS_SUCCESS; });
        if (works && (best_seconds == 0 || seconds < best_seconds)) best = i, best_seconds = seconds;
      }
    }
    plan->algo = results[best].algo;
    MatmulChoice choice{key, text_of(plan->algo), static_cast<int64_t>(results[best].workspaceSize),
                        best_seconds > 0 ? 2e-12 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                                               static_cast<double>(p.k) / best_seconds
                                         : 0};
    choices()[key] = choice;
  }
  return [run, plan, what = std::string(p.what)] { require(run(plan->algo), what); };
}

std::vector<MatmulChoice> matmul_choices() {
  std::lock_guard lock(choices_mutex);
  std::vector<MatmulChoice> out;
  for (const auto& [key, choice] : choices()) out.push_back(choice);
  return out;
}

void use_matmul_choices(const std::vector<MatmulChoice>& given) {
  std::lock_guard lock(choices_mutex);
  for (const MatmulChoice& c : given) choices()[c.key] = c;
}

}  // namespace pleat::kernels::cuda
