#include "runtime/logits.h"

#include "base/error.h"
#include "tensor/bf16.h"

namespace pleat::runtime {

void read_logits(const interpret::Executor& executor, int64_t row, std::vector<double>& out) {
  const program::ValueId id = executor.find(program::step::logits.key(0));
  const program::Value& v = executor.program().values[static_cast<size_t>(id)];
  const int64_t vocab = v.shape[1];
  PLEAT_CHECK(row >= 0 && row < v.shape[0], "row {} of {} rows of logits", row, v.shape[0]);
  out.resize(static_cast<size_t>(vocab));
  const auto copy = [&](const auto* logits) { std::copy_n(logits + row * vocab, vocab, out.begin()); };
  const void* data = executor.data(id);
  if (v.dtype == tensor::Dtype::F64) {
    copy(static_cast<const double*>(data));
  } else if (v.dtype == tensor::Dtype::F32) {
    copy(static_cast<const float*>(data));
  } else {  // bfloat16: the upper half of a float
    const auto* narrow = static_cast<const uint16_t*>(data) + row * vocab;
    for (int64_t i = 0; i < vocab; ++i) out[static_cast<size_t>(i)] = double(tensor::widened(narrow[i]));
  }
}

}  // namespace pleat::runtime
