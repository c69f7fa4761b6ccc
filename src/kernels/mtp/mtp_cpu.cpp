#include "kernels/mtp/mtp.h"

#include <algorithm>

#include "kernels/math/require.h"

namespace pleat::kernels {
namespace {

void shift(const Invocation& call) {
  const signature::mtp_shift::Forward args(call.args);
  const int32_t *tokens = args.tokens.as<int32_t>(), *labels = args.labels.as<int32_t>();
  const uint8_t *loss_mask = args.loss_mask.as<uint8_t>(), *valid = args.valid.as<uint8_t>();
  const int32_t* doc_start = args.doc_start.as<int32_t>();
  int32_t *ahead = args.ahead.as<int32_t>(), *ahead_labels = args.ahead_labels.as<int32_t>();
  uint8_t* mask = args.mask.as<uint8_t>();
  int64_t* count = args.count.as<int64_t>();
  const int64_t rows = args.tokens.dim(0), depth = call.integer("depth"), seq_len = call.integer("seq_len");
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
  *count = counted + (args.count.into() == Into::Accumulate ? *count : 0);
}

void weight(const Invocation& call) {
  const signature::mtp_weight::Forward args(call.args);
  *args.norm.as<double>() =
      call.attr("weight") / static_cast<double>(std::max<int64_t>(*args.count.as<int64_t>(), 1));
}

Kernel resolve_shift(const Invocation& call) {
  const signature::mtp_shift::Forward args(call.args);
  require_rank(args.tokens, 1);
  const int64_t rows = args.tokens.dim(0), depth = call.integer("depth"), seq_len = call.integer("seq_len");
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
  require_shape(args.count, {1});
  require_type(args.count, tensor::Dtype::I64);
  return &shift;
}

Kernel resolve_weight(const Invocation& call) {
  const signature::mtp_weight::Forward args(call.args);
  require_shape(args.count, {1});
  require_type(args.count, tensor::Dtype::I64);
  require_shape(args.norm, {1});
  require_type(args.norm, tensor::Dtype::F64);
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
