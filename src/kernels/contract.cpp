#include "kernels/contract.h"

namespace pleat::kernels {

void name_arguments(std::span<Arg> args, program::KernelKind kind, program::Phase phase) {
  const auto& arguments = program::arguments_of(kind, phase);
  if (!program::takes(arguments, args.size())) return;  // check says so, with the stage
  for (size_t i = 0; i < args.size(); ++i)
    args[i].kernel = name_of(kind), args[i].name = program::argument_of(arguments, args.size(), i).name;
}

std::string types_of(std::span<const Arg> args) {
  std::string out;
  for (const Arg& a : args)
    out += fmt::format("{}{}", out.empty() ? "" : ", ", a.present ? tensor::name_of(a.dtype) : "none");
  return out;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

void require_rank(const Arg& arg, size_t rank) {
  if (arg.present && arg.shape.size() != rank)
    refuse(arg, "argument '{}' has {} dimensions, needed {}", arg.name, arg.shape.size(), rank);
}

void require_shape(const Arg& arg, std::initializer_list<int64_t> shape) {
  const std::span<const int64_t> need(shape.begin(), shape.size());
  if (arg.present && !std::equal(arg.shape.begin(), arg.shape.end(), need.begin(), need.end()))
    refuse(arg, "argument '{}' is {}, needed {}", arg.name, shape_text(arg.shape), shape_text(need));
}

void require_shape(const Arg& arg, std::initializer_list<int64_t> shape, tensor::Dtype dtype) {
  require_shape(arg, shape);
  require_type(arg, dtype);
}

void require_type(const Arg& arg, tensor::Dtype dtype) {
  if (arg.present && arg.dtype != dtype)
    refuse(arg, "argument '{}' is {}, needed {}", arg.name, tensor::name_of(arg.dtype),
           tensor::name_of(dtype));
}

void require_float(const Arg& arg) {
  if (arg.present && !tensor::is_float(arg.dtype))
    refuse(arg, "argument '{}' is {}, needed a floating type", arg.name, tensor::name_of(arg.dtype));
}

void require_same_type(std::initializer_list<const Arg*> args) {
  const Arg* first = nullptr;
  for (const Arg* arg : args) {
    if (!arg->present) continue;
    if (!first) require_float(*(first = arg));
    require_type(*arg, first->dtype);
  }
}

void require_like(const Arg& arg, const Arg& other) {
  require_type(arg, other.dtype);
  require_same_shape(arg, other);
}

void require_same_shape(const Arg& arg, const Arg& other) {
  require_rank(arg, other.shape.size());
  for (size_t i = 0; arg.present && i < other.shape.size(); ++i)
    if (arg.dim(i) != other.dim(i))
      refuse(arg, "argument '{}' has {} in dimension {}, needed {} like '{}'", arg.name, arg.dim(i), i,
             other.dim(i), other.name);
}

void require_stored(const Arg& arg, const Arg& compute) {
  using tensor::Dtype;
  const Dtype own = compute.dtype;
  if (!arg.present || arg.dtype == own) return;
  if (own == Dtype::F64) return require_type(arg, own);
  const Dtype other = own == Dtype::BF16 ? Dtype::F32 : Dtype::BF16;
  if (arg.dtype != other)
    refuse(arg, "argument '{}' is {}, needed {} or {}", arg.name, tensor::name_of(arg.dtype),
           tensor::name_of(own), tensor::name_of(other));
}

double moved_bytes(std::span<const Arg> args) {
  double sum = 0;
  for (const Arg& arg : args)
    if (arg.present)
      sum += static_cast<double>(arg.size() * tensor::size_of(arg.dtype)) *
             (arg.access == program::Access::Update ? 2 : 1);
  return sum;
}

}  // namespace pleat::kernels
