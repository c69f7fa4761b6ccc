// Entry points of context_attention; the work is done by attention's own tiles.
#include "kernels/attention/context_attention.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& in) {
    const signature::context_attention::Forward<Arg> args(in.args);
    const ContextRows queries{args.row.as<int32_t>(), args.row.dim(0)};
    context_attention_forward<T>(attention_shape(in, args.kv.dim(0)), queries, args.qkv.as<T>(),
                                 args.kv.as<T>(), args.doc_start.as<int32_t>(), args.sinks.as<T>(),
                                 args.out.as<T>(), args.lse.as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    const signature::context_attention::BackwardInput<Arg> args(in.args);
    const ContextRows queries{args.row.as<int32_t>(), args.row.dim(0)};
    context_attention_backward<T>(attention_shape(in, args.kv.dim(0)), queries, args.dout.as<T>(),
                                  args.qkv.as<T>(), args.kv.as<T>(), args.out.as<T>(), args.lse.as<T>(),
                                  args.doc_start.as<int32_t>(), args.dq.as<T>(), args.dkv.as<T>(), *in.pool);
  }
};

}  // namespace

Kernel resolve_context_forward(const Invocation& in) {
  return select_float<Forward>(signature::context_attention::Forward(in.args).qkv.dtype);
}

Kernel resolve_context_backward(const Invocation& in) {
  return select_float<Backward>(signature::context_attention::BackwardInput(in.args).qkv.dtype);
}

}  // namespace pleat::kernels
