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
// Where not even one key/value head of one sequence fits, and for documents, whose scores would be those of
// `max_documents` whole sequences, there is no such backward.
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

// How a launch is cut into calls of one plan: `sequences` (or documents) and `kv_heads` (with their query
// heads) each.
struct Part {
  int64_t sequences, kv_heads;
};
inline Part part_of(const CudnnCase& c) {
  if (c.max_documents > 0) return {c.max_documents, c.shape.kv_heads};
  Part part{c.shape.rows / c.seq_len, c.shape.kv_heads};
  if (!c.backward || !c.deterministic) return part;
  const int64_t least = least_score_bytes(c.shape.heads, c.shape.kv_heads, c.seq_len);
  const auto too_big = [&] { return part.sequences * part.kv_heads * least > kMaxScoreBytes; };
  const auto smaller = [](int64_t n) {  // the largest divisor below n
    int64_t d = n - 1;
    while (n % d != 0) --d;
    return d;
  };
  while (too_big() && part.sequences > 1) part.sequences = smaller(part.sequences);
  while (too_big() && part.kv_heads > 1) part.kv_heads = smaller(part.kv_heads);
  return part;
}

// Why cuDNN is not asked at all; empty: it is.
inline std::string why_own(const CudnnCase& c, tensor::Dtype dtype) {
  const AttentionShape& s = c.shape;
  if (dtype != tensor::Dtype::BF16) return "the type is " + std::string(tensor::name_of(dtype));
  if (s.head_dim % 8 != 0 || s.v_head_dim % 8 != 0) return "a head's width is not a multiple of 8";
  if (c.seq_len < 2 || s.rows == 0) return "sequences of one token";
  if (!c.backward) return "";
  if (c.max_documents > 0 && c.deterministic) return "cuDNN: documents have no deterministic backward";
  // Seen with 9.14 at width 256: parts of the gradients are not written. Up to 192/128 without shared keys they
  // are, and up to 128 with them.
  if (c.max_documents > 0 && (s.head_dim > (s.heads != s.kv_heads ? 128 : 192) || s.v_head_dim > 128))
    return "cuDNN: documents of heads this wide: parts of the gradients are not written";
  if (c.deterministic && least_score_bytes(s.heads, s.kv_heads, c.seq_len) > kMaxScoreBytes)
    return "cuDNN: its deterministic backward would keep too many scores";
  return "";
}

// Of a case with nothing against it (why_own); nullptr where cuDNN has no plan for it all the same: `why` says so.
std::shared_ptr<const CudnnAttention> cudnn_attention(const CudnnCase& want, void* handle, std::string* why);

}  // namespace pleat::kernels::attention
