// Binds attention on the GPU: checks, and the choice between cuDNN and the own kernels.
//
// cuDNN takes bf16 with head widths that are multiples of 8: whole sequences, and packed documents where
// their number allows (documents.h) and the backward may be the faster one. Everything else (f32, other
// widths, what cuDNN has no plan for) is the own kernels' work. Sinks do not decide: cuDNN computes without
// them, one small kernel puts them in afterwards; backward needs only the log-sum-exp.
#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/attention/attention_bind.h"
#include "kernels/attention/attention_cudnn.h"
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

constexpr std::string_view kName = "attention";

struct Facts {
  int64_t seq_len;
  bool documents, deterministic;
};

Facts facts_of(const Invocation& in, const AttentionShape& s) {
  const Facts f{in.integer("seq_len"), in.attr("documents") != 0, in.attr("deterministic") != 0};
  if (f.seq_len < 1 || s.rows % f.seq_len != 0)
    base::fail("[{}] {} rows are not whole sequences of {}", kName, s.rows, f.seq_len);
  return f;
}

// Arguments by phase.
const Arg& qkv_of(const Invocation& in, Phase phase) {
  const signature::attention::BackwardInput args(in.args);
  return in[phase == Phase::Forward ? 0 : 1];
}

struct Choice {
  std::shared_ptr<const CudnnAttention> cudnn;  // nullptr: own
  std::string why;
};

Choice choose(const Invocation& in, Phase phase, device::cuda::Lane& lane) {
  const Arg& qkv = qkv_of(in, phase);
  const AttentionShape s = checked_attributes(kName, in, qkv, "qkv");
  const Facts f = facts_of(in, s);
  const auto own = [](std::string why) { return Choice{nullptr, std::move(why)}; };
  if (qkv.dtype != Dtype::BF16)
    return own(std::string("the type is ") + std::string(tensor::name_of(qkv.dtype)));
  if (s.head_dim % 8 != 0 || s.v_head_dim % 8 != 0) return own("a head's width is not a multiple of 8");
  if (f.seq_len < 2 || s.rows == 0) return own("sequences of one token");
  CudnnCase want{s, f.seq_len, f.documents ? max_documents(s.rows, f.seq_len) : 0, phase != Phase::Forward,
                 f.deterministic};
  std::string why;
  auto plan = cudnn_attention(want, lane.cudnn(), &why);
  if (!plan) return own("cuDNN: " + why);
  return {std::move(plan), ""};
}

std::string documents_of(const Invocation& in, const AttentionShape& s) {
  const Facts f = facts_of(in, s);
  if (!f.documents) return "";
  return fmt::format("; own kernel for microbatches of more than {} documents",
                     max_documents(s.rows, f.seq_len));
}

void note(const Invocation& in, Phase phase, const Choice& choice) {
  const AttentionShape s = shape_of(in, qkv_of(in, phase).dim(0));
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

AttentionShape checked(const Invocation& in, const Arg& qkv, const Arg& out, const Arg& lse,
                       const Arg& doc_start) {
  const AttentionShape s = checked_attributes(kName, in, qkv, "qkv");
  require_shape(kName, "qkv", qkv, {s.rows, s.width()});
  require_shape(kName, "doc_start", doc_start, {s.rows});
  require_shape(kName, "out", out, {s.rows, s.out_width()});
  require_shape(kName, "lse", lse, {s.rows, s.heads});
  require_dtype(kName, "doc_start", doc_start, Dtype::I32);
  require_dtype(kName, "out", out, qkv.dtype);
  require_dtype(kName, "lse", lse, Dtype::F32);
  facts_of(in, s);
  return s;
}

// The same for kernels that know nothing of sequences.
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

// cuDNN where the microbatch's documents fit the list, `own` where they do not. Scratch: the list, then what
// either needs.
CudaLaunch attend_documents(const AttentionShape& s, const Facts& f,
                            std::shared_ptr<const CudnnAttention> plan, CudnnArguments arguments,
                            OwnArguments own, device::cuda::Lane& lane) {
  const int64_t room = max_documents(s.rows, f.seq_len), list_bytes = document_list_bytes(room);
  own.max_documents = room;
  lane.need_scratch(list_bytes + plan->workspace_bytes());
  const bool backward = arguments.dqkv != nullptr;
  return [=, &lane, handle = lane.cudnn(),
          otherwise = (backward ? own_backward : own_forward)(own, Dtype::BF16, lane)] {
    CudnnArguments now = arguments;
    now.documents = document_list_at(lane.scratch(), room);
    list_documents(s, f.seq_len, room, own.doc_start, now.documents, lane.stream());
    plan->run(handle, now, lane.scratch() + list_bytes);
    otherwise();
  };
}

CudaLaunch prepare_forward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::attention::Forward args(in.args);
  const Arg &qkv = args.qkv, &doc_start = args.doc_start, &sinks = args.sinks, &out = args.out,
            &lse = args.lse;
  const AttentionShape s = checked(in, qkv, out, lse, doc_start);
  require_shape(kName, "sinks", sinks, {s.heads});
  require_dtype(kName, "sinks", sinks, qkv.dtype);
  require_output(kName, "out", out);
  require_output(kName, "lse", lse);
  if (qkv.dtype != Dtype::BF16 && qkv.dtype != Dtype::F32) return {};
  const Choice choice = choose(in, Phase::Forward, lane);
  note(in, Phase::Forward, choice);
  OwnArguments own = own_arguments(s, doc_start, lse);
  own.q_row = own.kv_row = s.width();
  own.q = qkv.data, own.k = at(qkv, s.k_column(0)), own.v = at(qkv, s.v_column(0));
  own.out_to = out.data;
  if (!choice.cudnn) {
    own.sinks = sinks.present ? sinks.data : nullptr;
    return own_forward(own, qkv.dtype, lane);
  }
  CudnnArguments a;
  a.qkv = qkv.data, a.out = out.data, a.stats = lse.data;
  CudaLaunch finish;
  if (sinks.present) finish = apply_sinks(s, sinks.data, out.data, lse.as<float>(), qkv.dtype, lane);
  CudaLaunch attend;
  if (const Facts f = facts_of(in, s); f.documents) {
    attend = attend_documents(s, f, choice.cudnn, a, own, lane);
  } else {
    lane.need_scratch(choice.cudnn->workspace_bytes());
    attend = [=, plan = choice.cudnn, handle = lane.cudnn(), &lane] { plan->run(handle, a, lane.scratch()); };
  }
  return [=] {
    attend();
    if (finish) finish();
  };
}

CudaLaunch prepare_backward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::attention::BackwardInput args(in.args);
  const Arg &dout = args.dout, &qkv = args.qkv, &out = args.out, &lse = args.lse, &doc_start = args.doc_start,
            &dqkv = args.dqkv;
  const AttentionShape s = checked(in, qkv, out, lse, doc_start);
  require_shape(kName, "dout", dout, {s.rows, s.out_width()});
  require_shape(kName, "dqkv", dqkv, {s.rows, s.width()});
  require_dtype(kName, "dout", dout, qkv.dtype);
  require_dtype(kName, "dqkv", dqkv, qkv.dtype);
  require_output(kName, "dqkv", dqkv);
  if (qkv.dtype != Dtype::BF16 && qkv.dtype != Dtype::F32) return {};
  const Choice choice = choose(in, Phase::BackwardInput, lane);
  note(in, Phase::BackwardInput, choice);
  OwnArguments own = own_arguments(s, doc_start, lse);
  own.q_row = own.kv_row = own.dq_row = own.dkv_row = s.width();
  own.q = qkv.data, own.k = at(qkv, s.k_column(0)), own.v = at(qkv, s.v_column(0));
  own.out = out.data, own.dout = dout.data;
  own.dq = dqkv.data;
  own.dk = const_cast<std::byte*>(at(dqkv, s.k_column(0)));
  own.dv_to = const_cast<std::byte*>(at(dqkv, s.v_column(0)));
  if (!choice.cudnn) return own_backward(own, qkv.dtype, lane);
  CudnnArguments a;
  a.qkv = qkv.data, a.out = out.data, a.dout = dout.data, a.dqkv = dqkv.data;
  const Facts f = facts_of(in, s);
  if (f.documents) {
    a.stats = lse.data;
    return attend_documents(s, f, choice.cudnn, a, own, lane);
  }
  // Scratch: the transposed log-sum-exp, then cuDNN's workspace.
  const CudaLaunch transpose = transpose_lse(lse.as<float>(), s.rows, s.heads, f.seq_len, lane);
  const int64_t stats_bytes = cuda::ceil_div(s.rows * s.heads * 4, 256) * 256;
  lane.need_scratch(stats_bytes + choice.cudnn->workspace_bytes());
  return [=, plan = choice.cudnn, handle = lane.cudnn(), &lane] {
    transpose();
    CudnnArguments now = a;
    now.stats = lane.scratch();
    plan->run(handle, now, lane.scratch() + stats_bytes);
  };
}

CudaLaunch prepare_sinks(const Invocation& in, device::cuda::Lane& lane) {
  const signature::attention::BackwardWeight args(in.args);
  const Arg &dout = args.dout, &out = args.out, &lse = args.lse, &sinks = args.sinks, &dsinks = args.dsinks;
  const AttentionShape s = checked_attributes(kName, in, dout, "dout");
  require_shape(kName, "dout", dout, {s.rows, s.out_width()});
  require_shape(kName, "out", out, {s.rows, s.out_width()});
  require_shape(kName, "lse", lse, {s.rows, s.heads});
  require_shape(kName, "sinks", sinks, {s.heads});
  require_shape(kName, "dsinks", dsinks, {s.heads});
  require_dtype(kName, "out", out, dout.dtype);
  require_dtype(kName, "lse", lse, Dtype::F32);
  require_dtype(kName, "sinks", sinks, dout.dtype);
  return sinks_backward(s, dout.data, out.data, lse.as<float>(), sinks.data, dout.dtype, dsinks, lane);
}

constexpr std::string_view kContext = "context_attention";

// What both directions read; kernels count keys in rows of the microbatch, queries in own rows.
OwnArguments checked_context(const Invocation& in, const Arg& qkv, const Arg& kv, const Arg& row,
                             const Arg& doc_start, const Arg& out, const Arg& lse) {
  const AttentionShape own = checked_attributes(kContext, in, qkv, "qkv"),
                       all = checked_attributes(kContext, in, kv, "kv");
  require_shape(kContext, "qkv", qkv, {own.rows, own.width()});
  require_shape(kContext, "kv", kv, {all.rows, all.kv_width()});
  require_shape(kContext, "row", row, {own.rows});
  require_shape(kContext, "doc_start", doc_start, {all.rows});
  require_shape(kContext, "out", out, {own.rows, own.out_width()});
  require_shape(kContext, "lse", lse, {own.rows, own.heads});
  require_dtype(kContext, "kv", kv, qkv.dtype);
  require_dtype(kContext, "row", row, Dtype::I32);
  require_dtype(kContext, "doc_start", doc_start, Dtype::I32);
  require_dtype(kContext, "out", out, qkv.dtype);
  require_dtype(kContext, "lse", lse, Dtype::F32);
  OwnArguments a = own_arguments(all, doc_start, lse);
  a.num_queries = static_cast<int>(own.rows);
  a.query_row = row.as<int32_t>();
  a.q_row = own.width(), a.kv_row = all.kv_width();
  a.q = qkv.data, a.k = kv.data, a.v = at(kv, all.kv_v_column());
  return a;
}

CudaLaunch prepare_context_forward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::context_attention::Forward args(in.args);
  const Arg &qkv = args.qkv, &sinks = args.sinks, &out = args.out, &lse = args.lse;
  OwnArguments a = checked_context(in, qkv, args.kv, args.row, args.doc_start, out, lse);
  require_shape(kContext, "sinks", sinks, {a.heads});
  require_dtype(kContext, "sinks", sinks, qkv.dtype);
  require_output(kContext, "out", out);
  require_output(kContext, "lse", lse);
  a.sinks = sinks.present ? sinks.data : nullptr;
  a.out_to = out.data;
  return own_forward(a, qkv.dtype, lane);
}

CudaLaunch prepare_context_backward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::context_attention::BackwardInput args(in.args);
  const Arg &dout = args.dout, &qkv = args.qkv, &kv = args.kv, &out = args.out, &lse = args.lse,
            &dq = args.dq, &dkv = args.dkv;
  OwnArguments a = checked_context(in, qkv, kv, args.row, args.doc_start, out, lse);
  const int64_t q_width = static_cast<int64_t>(a.heads) * a.d;
  require_shape(kContext, "dout", dout, {qkv.dim(0), a.out_row});
  require_shape(kContext, "dq", dq, {qkv.dim(0), q_width});
  require_shape(kContext, "dkv", dkv, {kv.dim(0), kv.dim(1)});
  require_dtype(kContext, "dout", dout, qkv.dtype);
  require_dtype(kContext, "dq", dq, qkv.dtype);
  require_dtype(kContext, "dkv", dkv, qkv.dtype);
  require_output(kContext, "dq", dq);
  require_output(kContext, "dkv", dkv);
  a.out = out.data, a.dout = dout.data;
  a.dq_row = q_width, a.dkv_row = a.kv_row;
  a.dq = dq.data, a.dk = dkv.data;
  a.dv_to = const_cast<std::byte*>(at(dkv, static_cast<int64_t>(a.kv_heads) * a.d));
  return own_backward(a, qkv.dtype, lane);
}

}  // namespace

std::string attention_path(const Invocation& call, Phase phase, device::cuda::Lane& lane) {
  const Choice choice = choose(call, phase, lane);
  return choice.cudnn ? "cudnn" : "own: " + choice.why;
}

std::span<const CudaBinding> attention_cuda_bindings() {
  using program::KernelKind;
  static constexpr CudaBinding rows[] = {
      {KernelKind::attention, Phase::Forward, prepare_forward},
      {KernelKind::attention, Phase::BackwardInput, prepare_backward},
      {KernelKind::attention, Phase::BackwardWeight, prepare_sinks},
      {KernelKind::context_attention, Phase::Forward, prepare_context_forward},
      {KernelKind::context_attention, Phase::BackwardInput, prepare_context_backward},
      {KernelKind::context_attention, Phase::BackwardWeight, prepare_sinks},
      {KernelKind::ring_attention, Phase::Forward, prepare_ring_forward},
      {KernelKind::ring_attention, Phase::BackwardInput, prepare_ring_backward},
      {KernelKind::ring_attention, Phase::BackwardWeight, prepare_sinks},
  };
  return rows;
}

}  // namespace pleat::kernels
