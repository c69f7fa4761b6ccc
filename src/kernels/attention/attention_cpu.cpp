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

constexpr Binding kTable[] = {
    row<signature::attention::Forward, Forward>([](const auto& a) { return a.qkv.dtype; }),
    row<signature::attention::BackwardInput, Backward>([](const auto& a) { return a.qkv.dtype; }),
    row<signature::attention::BackwardWeight>(Sinks<signature::attention::BackwardWeight>::resolve),
    row<signature::context_attention::Forward>(resolve_context_forward),
    row<signature::context_attention::BackwardInput>(resolve_context_backward),
    row<signature::context_attention::BackwardWeight>(
        Sinks<signature::context_attention::BackwardWeight>::resolve),
    row<signature::ring_attention::Forward>(resolve_ring_forward),
    row<signature::ring_attention::BackwardInput>(resolve_ring_backward),
    row<signature::ring_attention::BackwardWeight>(Sinks<signature::ring_attention::BackwardWeight>::resolve),
};

}  // namespace

std::span<const Binding> attention_bindings() { return kTable; }

}  // namespace pleat::kernels
