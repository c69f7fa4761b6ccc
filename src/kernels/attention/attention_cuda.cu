// Binds attention on the GPU: the choice between cuDNN and the own kernels.
//
// cuDNN takes bf16 with head widths that are multiples of 8: whole sequences, and packed documents where
// their number allows (documents.h) and the backward may be the faster one. Everything else (f32, other
// widths, what cuDNN has no plan for) is the own kernels' work. Sinks do not decide: cuDNN computes without
// them, one small kernel puts them in afterwards; backward needs only the log-sum-exp.
#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/attention/attention_own.h"
#include "kernels/attention/attention_path.h"
#include "kernels/attention/ring_attention_cuda.h"
#include "kernels/cuda/paths.h"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels {
namespace {

using namespace attention;
using program::Phase;
using tensor::Dtype;

struct Choice {
  std::shared_ptr<const CudnnAttention> cudnn;  // nullptr: own
  std::string why;
};

Choice choose(const Arg& qkv, const Invocation& in, Phase phase, device::cuda::Lane& lane) {
  const CudnnCase want = cudnn_case(qkv, in, phase != Phase::Forward);
  if (std::string why = why_own(want, qkv.dtype); !why.empty()) return {nullptr, std::move(why)};
  std::string why;
  auto plan = cudnn_attention(want, lane.cudnn(), &why);
  if (!plan) return {nullptr, "cuDNN: " + why};
  return {std::move(plan), ""};
}

std::string documents_of(const Invocation& in, const AttentionShape& s) {
  if (in.attr("documents") == 0) return "";
  return fmt::format("; own kernel for microbatches of more than {} documents",
                     max_documents(s.rows, in.integer("seq_len")));
}

void note(const AttentionShape& s, const Invocation& in, Phase phase, const Choice& choice) {
  std::string line =
      fmt::format("attention {}: {} rows, {} heads over {}, width {}/{}, window {}: {}",
                  phase == Phase::Forward ? "forward" : "backward", s.rows, s.heads, s.kv_heads, s.head_dim,
                  s.v_head_dim, s.window,
                  choice.cudnn ? fmt::format("cuDNN, {:.0f} MiB workspace{}{}",
                                             static_cast<double>(choice.cudnn->workspace_bytes()) / (1 << 20),
                                             phase == Phase::Forward         ? ""
                                             : in.attr("deterministic") != 0 ? ", deterministic"
                                                                             : ", not deterministic",
                                             documents_of(in, s))
                               : "own kernel (" + choice.why + ")");
  cuda::note_path(std::move(line));
}

// For kernels that know nothing of sequences.
OwnArguments own_arguments(const AttentionShape& s, const Arg& doc_start, const Arg& lse) {
  OwnArguments a;
  a.num_queries = a.num_keys = static_cast<int>(s.rows);
  a.heads = s.heads, a.kv_heads = s.kv_heads, a.d = s.head_dim, a.dv = s.v_head_dim;
  a.window = static_cast<int>(std::min<int64_t>(s.window, s.rows));
  a.scale = static_cast<float>(s.scale);
  a.doc_start = doc_start.as<int32_t>();
  a.lse = lse.as<float>();
  a.out_row = s.out_width();
  return a;
}

const std::byte* at(const Arg& arg, int64_t element) {
  return static_cast<const std::byte*>(arg.data) +
         element * (arg.dtype == Dtype::BF16 ? int64_t{2} : int64_t{4});
}

// cuDNN's part of the scratch.
std::byte* workspace_in(std::span<std::byte> scratch, const CudnnAttention& plan) {
  if (plan.workspace_bytes() > static_cast<int64_t>(scratch.size()))
    base::fail_with(base::ExitCode::Hardware,
                    "cuDNN asks for a workspace of {} bytes where {} were planned for its attention "
                    "(kernels/attention/attention_scratch.h)",
                    plan.workspace_bytes(), scratch.size());
  return scratch.data();
}

// cuDNN where the microbatch's documents fit the list, `own` where they do not. Scratch: the list, then what
// either needs.
CudaLaunch attend_documents(const AttentionShape& s, const Invocation& in,
                            std::shared_ptr<const CudnnAttention> plan, CudnnArguments arguments,
                            OwnArguments own, device::cuda::Lane& lane) {
  const int64_t seq_len = in.integer("seq_len"), room = max_documents(s.rows, seq_len),
                list_bytes = document_list_bytes(room);
  arguments.documents = document_list_at(in.scratch_for(list_bytes), room);
  own.listed = arguments.documents.listed;
  const std::span<std::byte> rest = in.scratch.subspan(static_cast<size_t>(list_bytes));
  const CudaLaunch otherwise =
      arguments.dqkv ? own_backward(own, Dtype::BF16, rest, lane) : own_forward(own, Dtype::BF16, lane);
  return [=, stream = lane.stream(), handle = lane.cudnn(), workspace = workspace_in(rest, *plan)] {
    list_documents(s, seq_len, room, own.doc_start, arguments.documents, stream);
    plan->run(handle, arguments, workspace);
    otherwise();
  };
}

CudaLaunch prepare_forward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::attention::Forward<Arg> args(in.args);
  const Arg &qkv = args.qkv, &sinks = args.sinks;
  if (!cuda::is_stored(qkv.dtype)) return {};
  const AttentionShape s = attention_shape(in, qkv.dim(0));
  const Choice choice = choose(qkv, in, Phase::Forward, lane);
  note(s, in, Phase::Forward, choice);
  OwnArguments own = own_arguments(s, args.doc_start, args.lse);
  own.q_row = own.kv_row = s.width();
  own.q = qkv.data, own.k = at(qkv, s.k_column(0)), own.v = at(qkv, s.v_column(0));
  own.out_to = args.out.data;
  if (!choice.cudnn) {
    own.sinks = sinks.present ? sinks.data : nullptr;
    return own_forward(own, qkv.dtype, lane);
  }
  CudnnArguments a;
  a.qkv = qkv.data, a.out = args.out.data, a.stats = args.lse.data;
  CudaLaunch finish;
  if (sinks.present)
    finish = apply_sinks(s, sinks.data, args.out.data, args.lse.as<float>(), qkv.dtype, lane);
  CudaLaunch attend;
  if (in.attr("documents") != 0)
    attend = attend_documents(s, in, choice.cudnn, a, own, lane);
  else
    attend = [=, plan = choice.cudnn, handle = lane.cudnn(),
              workspace = workspace_in(in.scratch, *choice.cudnn)] { plan->run(handle, a, workspace); };
  return [=] {
    attend();
    if (finish) finish();
  };
}

CudaLaunch prepare_backward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::attention::BackwardInput<Arg> args(in.args);
  const Arg &qkv = args.qkv, &dqkv = args.dqkv;
  if (!cuda::is_stored(qkv.dtype)) return {};
  const AttentionShape s = attention_shape(in, qkv.dim(0));
  const Choice choice = choose(qkv, in, Phase::BackwardInput, lane);
  note(s, in, Phase::BackwardInput, choice);
  OwnArguments own = own_arguments(s, args.doc_start, args.lse);
  own.q_row = own.kv_row = own.dq_row = own.dkv_row = s.width();
  own.q = qkv.data, own.k = at(qkv, s.k_column(0)), own.v = at(qkv, s.v_column(0));
  own.out = args.out.data, own.dout = args.dout.data;
  own.dq = dqkv.data;
  own.dk = const_cast<std::byte*>(at(dqkv, s.k_column(0)));
  own.dv_to = const_cast<std::byte*>(at(dqkv, s.v_column(0)));
  if (!choice.cudnn) return own_backward(own, qkv.dtype, in.scratch, lane);
  CudnnArguments a;
  a.qkv = qkv.data, a.out = args.out.data, a.dout = args.dout.data, a.dqkv = dqkv.data;
  if (in.attr("documents") != 0) {
    a.stats = args.lse.data;
    return attend_documents(s, in, choice.cudnn, a, own, lane);
  }
  // Scratch: the transposed log-sum-exp, then cuDNN's workspace.
  const int64_t stats_bytes = transposed_lse_bytes(s);
  a.stats = in.scratch_for(stats_bytes);
  const CudaLaunch transpose = transpose_lse(args.lse.as<float>(), static_cast<float*>(a.stats), s.rows,
                                             s.heads, in.integer("seq_len"), lane);
  return [=, plan = choice.cudnn, handle = lane.cudnn(),
          workspace = workspace_in(in.scratch.subspan(static_cast<size_t>(stats_bytes)), *choice.cudnn)] {
    transpose();
    plan->run(handle, a, workspace);
  };
}

// The gradient of the sinks is the same for all three.
template <template <class> class Row>
CudaLaunch prepare_sinks(const Invocation& in, device::cuda::Lane& lane) {
  const Row<Arg> args(in.args);
  if (!cuda::is_stored(args.dout.dtype)) return {};
  return sinks_backward(attention_shape(in, args.dout.dim(0)), args.dout.data, args.out.data,
                        args.lse.template as<float>(), args.sinks.data, args.dout.dtype, args.dsinks,
                        in.scratch, lane);
}

// What both directions read; kernels count keys in rows of the microbatch, queries in own rows.
template <class Args>
OwnArguments context_arguments(const Args& args, const Invocation& in) {
  const AttentionShape all = attention_shape(in, args.kv.dim(0));
  OwnArguments a = own_arguments(all, args.doc_start, args.lse);
  a.num_queries = static_cast<int>(args.qkv.dim(0));
  a.query_row = args.row.template as<int32_t>();
  a.q_row = all.width(), a.kv_row = all.kv_width();
  a.q = args.qkv.data, a.k = args.kv.data, a.v = at(args.kv, all.kv_v_column());
  return a;
}

CudaLaunch prepare_context_forward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::context_attention::Forward<Arg> args(in.args);
  if (!cuda::is_stored(args.qkv.dtype)) return {};
  OwnArguments a = context_arguments(args, in);
  a.sinks = args.sinks.present ? args.sinks.data : nullptr;
  a.out_to = args.out.data;
  return own_forward(a, args.qkv.dtype, lane);
}

CudaLaunch prepare_context_backward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::context_attention::BackwardInput<Arg> args(in.args);
  if (!cuda::is_stored(args.qkv.dtype)) return {};
  OwnArguments a = context_arguments(args, in);
  a.out = args.out.data, a.dout = args.dout.data;
  a.dq_row = static_cast<int64_t>(a.heads) * a.d, a.dkv_row = a.kv_row;
  a.dq = args.dq.data, a.dk = args.dkv.data;
  a.dv_to = const_cast<std::byte*>(at(args.dkv, static_cast<int64_t>(a.kv_heads) * a.d));
  return own_backward(a, args.qkv.dtype, in.scratch, lane);
}

}  // namespace

std::string attention_path(const Invocation& call, Phase phase, device::cuda::Lane& lane) {
  const Arg& qkv = phase == Phase::Forward ? signature::attention::Forward(call.args).qkv
                                           : signature::attention::BackwardInput(call.args).qkv;
  const Choice choice = choose(qkv, call, phase, lane);
  return choice.cudnn ? "cudnn" : "own: " + choice.why;
}

namespace {

constexpr CudaBinding kTable[] = {
    row<signature::attention::Forward>(prepare_forward),
    row<signature::attention::BackwardInput>(prepare_backward),
    row<signature::attention::BackwardWeight>(prepare_sinks<signature::attention::BackwardWeight>),
    row<signature::context_attention::Forward>(prepare_context_forward),
    row<signature::context_attention::BackwardInput>(prepare_context_backward),
    row<signature::context_attention::BackwardWeight>(
        prepare_sinks<signature::context_attention::BackwardWeight>),
    row<signature::ring_attention::Forward>(prepare_ring_forward),
    row<signature::ring_attention::BackwardInput>(prepare_ring_backward),
    row<signature::ring_attention::BackwardWeight>(prepare_sinks<signature::ring_attention::BackwardWeight>),
};

}  // namespace

std::span<const CudaBinding> attention_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
