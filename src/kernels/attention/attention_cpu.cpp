// Binds the attention kernels.
#include "kernels/attention/context_attention.h"
#include "kernels/attention/ring_attention.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& in) {
    const signature::attention::Forward<Arg> args(in.args);
    attention_forward<T>(attention_shape(in, args.qkv.dim(0)), args.qkv.as<T>(), args.doc_start.as<int32_t>(),
                         args.sinks.as<T>(), args.out.as<T>(), args.lse.as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    const signature::attention::BackwardInput<Arg> args(in.args);
    attention_backward<T>(attention_shape(in, args.qkv.dim(0)), args.dout.as<T>(), args.qkv.as<T>(),
                          args.out.as<T>(), args.lse.as<T>(), args.doc_start.as<int32_t>(), args.dqkv.as<T>(),
                          *in.pool);
  }
};

Kernel resolve_forward(const Invocation& in) {
  return select_float<Forward>(signature::attention::Forward(in.args).qkv.dtype);
}

Kernel resolve_backward(const Invocation& in) {
  return select_float<Backward>(signature::attention::BackwardInput(in.args).qkv.dtype);
}

// The gradient of the sinks is the same for all three.
template <template <class> class Row>
struct Sinks {
  template <class T>
  struct Gradient {
    static void run(const Invocation& in) {
      const Row<Arg> args(in.args);
      attention_backward_sinks<T>(attention_shape(in, args.dout.dim(0)), args.dout.template as<T>(),
                                  args.out.template as<T>(), args.lse.template as<T>(),
                                  args.sinks.template as<T>(), args.dsinks.into(),
                                  args.dsinks.template as<T>(), *in.pool);
    }
  };
  static Kernel resolve(const Invocation& in) {
    const Row<Arg> args(in.args);
    return args.dsinks.dtype == args.dout.dtype ? select_float<Gradient>(args.dout.dtype) : nullptr;
  }
};

}  // namespace

std::span<const Binding> attention_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::attention, Phase::Forward, resolve_forward},
      {KernelKind::attention, Phase::BackwardInput, resolve_backward},
      {KernelKind::attention, Phase::BackwardWeight, Sinks<signature::attention::BackwardWeight>::resolve},
      {KernelKind::context_attention, Phase::Forward, resolve_context_forward},
      {KernelKind::context_attention, Phase::BackwardInput, resolve_context_backward},
      {KernelKind::context_attention, Phase::BackwardWeight,
       Sinks<signature::context_attention::BackwardWeight>::resolve},
      {KernelKind::ring_attention, Phase::Forward, resolve_ring_forward},
      {KernelKind::ring_attention, Phase::BackwardInput, resolve_ring_backward},
      {KernelKind::ring_attention, Phase::BackwardWeight,
       Sinks<signature::ring_attention::BackwardWeight>::resolve},
  };
  return rows;
}

}  // namespace pleat::kernels
