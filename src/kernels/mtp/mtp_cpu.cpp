#include "kernels/mtp/mtp.h"

#include <algorithm>

#include "kernels/math/require.h"

namespace pleat::kernels {
namespace {

void shift(const Invocation& call) {
  const int32_t *tokens = call[0].as<int32_t>(), *labels = call[1].as<int32_t>();
  const uint8_t *loss_mask = call[2].as<uint8_t>(), *valid = call[3].as<uint8_t>();
  const int32_t* doc_start = call[4].as<int32_t>();
  int32_t *ahead = call[5].as<int32_t>(), *ahead_labels = call[6].as<int32_t>();
  uint8_t* mask = call[7].as<uint8_t>();
  int64_t* count = call[8].as<int64_t>();
  const int64_t rows = call[0].dim(0), depth = call.integer("depth"), seq_len = call.integer("seq_len");
  int64_t counted = 0;
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t to = t + depth;
    const bool inside =
        t % seq_len + depth < seq_len && doc_start[to] == doc_start[t] && valid[t] && valid[to];
    ahead[t] = tokens[inside ? to : t];
    ahead_labels[t] = inside ? labels[to] : 0;
    mask[t] = inside && loss_mask[to];
    counted += mask[t];
  }
  *count = counted + (call[8].into() == Into::Accumulate ? *count : 0);
}

void weight(const Invocation& call) {
  *call[1].as<double>() =
      call.attr("weight") / static_cast<double>(std::max<int64_t>(*call[0].as<int64_t>(), 1));
}

Kernel resolve_shift(const Invocation& call) {
  require_rank("mtp_shift", "tokens", call[0], 1);
  const int64_t rows = call[0].dim(0), depth = call.integer("depth"), seq_len = call.integer("seq_len");
  if (depth < 1) base::fail("[mtp_shift] depth is {}, needed 1 or more", depth);
  if (seq_len < 1 || rows % seq_len != 0)
    base::fail("[mtp_shift] {} rows are not whole sequences of {}", rows, seq_len);
  static constexpr const char* names[] = {"tokens",    "labels", "loss_mask",    "valid",
                                          "doc_start", "ahead",  "ahead_labels", "mask"};
  for (size_t i = 0; i < 8; ++i) {
    require_shape("mtp_shift", names[i], call[i], {rows});
    const bool flag = i == 2 || i == 3 || i == 7;
    require_dtype("mtp_shift", names[i], call[i], flag ? tensor::Dtype::U8 : tensor::Dtype::I32);
  }
  require_shape("mtp_shift", "count", call[8], {1});
  require_dtype("mtp_shift", "count", call[8], tensor::Dtype::I64);
  return &shift;
}

Kernel resolve_weight(const Invocation& call) {
  require_shape("mtp_weight", "count", call[0], {1});
  require_dtype("mtp_weight", "count", call[0], tensor::Dtype::I64);
  require_shape("mtp_weight", "norm", call[1], {1});
  require_dtype("mtp_weight", "norm", call[1], tensor::Dtype::F64);
  if (!(call.attr("weight") > 0))
    base::fail("[mtp_weight] weight is {}, needed more than 0", call.attr("weight"));
  return &weight;
}

}  // namespace

std::span<const Binding> mtp_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::mtp_shift, Phase::Forward, resolve_shift},
      {KernelKind::mtp_weight, Phase::Forward, resolve_weight},
  };
  return rows;
}

}  // namespace pleat::kernels
