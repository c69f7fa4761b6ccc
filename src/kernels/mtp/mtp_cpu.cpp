#include "kernels/mtp/mtp.h"

#include <algorithm>

namespace pleat::kernels {
namespace {

void shift(const Invocation& call) {
  const signature::mtp_shift::Forward<Arg> args(call.args);
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
  const signature::mtp_weight::Forward<Arg> args(call.args);
  *args.norm.as<double>() =
      call.attr("weight") / static_cast<double>(std::max<int64_t>(*args.count.as<int64_t>(), 1));
}

constexpr Binding kTable[] = {
    row<signature::mtp_shift::Forward, shift>(),
    row<signature::mtp_weight::Forward, weight>(),
};

}  // namespace

std::span<const Binding> mtp_bindings() { return kTable; }

}  // namespace pleat::kernels
