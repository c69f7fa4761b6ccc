// documents.h: one block of threads walks doc_start, each thread a run of rows.
#include "device/cuda/check.h"
#include "kernels/attention/documents.h"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::attention {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

struct Widths {
  int64_t qkv, out, stats;
};

__global__ void __launch_bounds__(kThreads)
    list(const int32_t* doc_start, int rows, int64_t seq_len, int room, Widths widths, DocumentList to) {
  __shared__ int counts[kWarps], total;
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
  const int share = (rows + kThreads - 1) / kThreads, begin = min(rows, t * share),
            end = min(rows, begin + share);
  int count = 0;
  bool fits = true;
  for (int i = begin; i < end; ++i) {
    const int start = doc_start[i];
    const bool first = start == i;
    count += first;
    fits = fits && (first || (i > 0 && start == doc_start[i - 1])) && i - start < seq_len;
  }
  // Documents that start before this thread's rows.
  int before = count;
  for (int step = 1; step < 32; step *= 2) {
    const int more = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += more;
  }
  if (lane == 31) counts[warp] = before;
  fits = __syncthreads_and(fits);
  if (t == 0) {
    int sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      const int of_warp = counts[w];
      counts[w] = sum;
      sum += of_warp;
    }
    total = sum;
  }
  __syncthreads();
  before += counts[warp] - count;
  const bool listed = fits && total <= room;
  const int num = listed ? total : 0;
  const auto put = [&](int document, int64_t row) {
    to.qkv_at[document] = row * widths.qkv;
    to.out_at[document] = row * widths.out;
    to.stats_at[document] = row * widths.stats;
  };
  if (listed)
    for (int i = begin; i < end; ++i)
      if (doc_start[i] == i) put(before++, i);
  for (int document = num + t; document <= room; document += kThreads) put(document, rows);
  if (t == 0) *to.listed = listed;
  __syncthreads();
  for (int document = t; document < room; document += kThreads)
    to.lengths[document] =
        static_cast<int32_t>((to.stats_at[document + 1] - to.stats_at[document]) / widths.stats);
}

int64_t rounded(int64_t bytes) {
  return cuda::ceil_div(bytes, kDocumentListAlignment) * kDocumentListAlignment;
}

}  // namespace

DocumentList document_list_at(std::byte* memory, int64_t max_documents) {
  const auto take = [&](int64_t bytes) {
    std::byte* at = memory;
    memory += rounded(bytes);
    return at;
  };
  const auto offsets = [&] { return reinterpret_cast<int64_t*>(take(8 * (max_documents + 1))); };
  DocumentList list;
  list.listed = reinterpret_cast<int32_t*>(take(4));
  list.lengths = reinterpret_cast<int32_t*>(take(4 * max_documents));
  list.qkv_at = offsets();
  list.out_at = offsets();
  list.stats_at = offsets();
  return list;
}

void list_documents(const AttentionShape& shape, int64_t seq_len, int64_t max_documents,
                    const int32_t* doc_start, const DocumentList& to, CUstream_st* stream) {
  list<<<1, kThreads, 0, stream>>>(doc_start, static_cast<int>(shape.rows), seq_len,
                                   static_cast<int>(max_documents),
                                   Widths{shape.width(), shape.out_width(), shape.heads}, to);
  PLEAT_CUDA_LAUNCHED();
}

}  // namespace pleat::kernels::attention
