#include <initializer_list>

#include "kernels/bind.h"

namespace pleat::kernels {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

}  // namespace

void require_shape(std::string_view kernel, std::string_view argument, const Arg& arg,
                   std::initializer_list<int64_t> shape) {
  if (!arg.present) return;
  const std::span<const int64_t> need(shape.begin(), shape.size());
  if (!std::equal(arg.shape.begin(), arg.shape.end(), need.begin(), need.end()))
    base::fail("[{}] argument '{}' is {}, needed {}", kernel, argument, shape_text(arg.shape),
               shape_text(need));
}

void require_dtype(std::string_view kernel, std::string_view argument, const Arg& arg, tensor::Dtype dtype) {
  if (arg.present && arg.dtype != dtype)
    base::fail("[{}] argument '{}' is {}, needed {}", kernel, argument, tensor::name_of(arg.dtype),
               tensor::name_of(dtype));
}

Resolve find_cpu_kernel(program::KernelKind kind, program::Phase phase) {
  for (auto rows : {embedding_bindings(), linear_bindings(), rmsnorm_bindings(), rope_bindings(),
                    mla_bindings(), attention_bindings(), cached_attention_bindings(), mla_decode_bindings(),
                    swiglu_bindings(), sigmoid_gate_bindings(), router_bindings(), dispatch_bindings(),
                    grouped_linear_bindings(), rows_bindings(), cross_entropy_bindings(),
                    token_score_bindings(), mtp_bindings(), optimizer_bindings(), shares_bindings()})
    for (const Binding& row : rows)
      if (row.kind == kind && row.phase == phase) return row.resolve;
  return nullptr;
}

}  // namespace pleat::kernels
