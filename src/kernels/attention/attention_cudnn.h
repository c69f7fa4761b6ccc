// cuDNN's fused attention for whole sequences of equal length or a list of documents, without a vendor
// header.
//
// q, k and v are strided views of packed rows, dq, dk and dv as well: nothing is copied. The one exception is
// the log-sum-exp of whole sequences: backward wants it as [sequence, head, row], so its caller hands a
// transposed copy.
//
// Documents: a plan is made for a number of them, their places are read on the device (documents.h). Those of
// length zero cost next to nothing and are neither read nor written.
//
// The deterministic backward keeps all scores of a call, 2 bytes each. So a call covers as many sequences,
// and if one is too much as many heads, as kMaxScoreBytes allows; the caller's launch is several calls then.
// Where not even one key/value head of one sequence fits there is no plan.
//
// A plan is built once per process for each shape and kept.
#pragma once

#include <memory>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/attention/documents.h"

namespace pleat::kernels::attention {

struct CudnnCase {
  AttentionShape shape;       // rows: of the whole microbatch
  int64_t seq_len = 0;        // divides rows; no document is longer
  int64_t max_documents = 0;  // 0: whole sequences
  bool backward = false;
  bool deterministic = true;  // backward only
};

// Addresses of packed rows, as in attention.h. stats: [T, H], natural logarithm; but backward of whole
// sequences reads the transposed copy [T / seq_len, H, seq_len].
struct CudnnArguments {
  void* qkv = nullptr;
  void* out = nullptr;
  void* stats = nullptr;
  void* dout = nullptr;  // this and the next: backward
  void* dqkv = nullptr;
  DocumentList documents;  // where the case has them
};

class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  virtual int64_t workspace_bytes() const = 0;
  // Enqueues on the stream the handle (cudnnHandle_t) is bound to.
  virtual void run(void* handle, const CudnnArguments& arguments, void* workspace) const = 0;
};

constexpr int64_t kMaxScoreBytes = int64_t{2} << 30;

// What the deterministic backward keeps of one sequence and one key/value head: the scores of its query
// heads.
constexpr int64_t least_score_bytes(int64_t heads, int64_t kv_heads, int64_t seq_len) {
  const auto padded = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  return heads / kv_heads * padded(seq_len, 64) * padded(seq_len, 128) * 2;
}

// bf16. nullptr where cuDNN has no plan for this case; `why` says so. Documents have no deterministic
// backward: it would keep the scores of `max_documents` whole sequences.
std::shared_ptr<const CudnnAttention> cudnn_attention(const CudnnCase& want, void* handle, std::string* why);

}  // namespace pleat::kernels::attention
