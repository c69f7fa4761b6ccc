// The one translation unit that sees cudnn-frontend, whose header is heavy.
#include "kernels/attention/attention_cudnn.h"

#include <cudnn_frontend.h>

#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace pleat::kernels::attention {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;

enum Id : int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV, kLengths, kQkvAt, kOutAt, kStatsAt };

class Plan final : public CudnnAttention {
 public:
  Plan(const CudnnCase& c, void* handle) : case_(c), part_(part_of(c)) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (c.max_documents > 0) describe_documents();
    c.backward ? describe_backward() : describe_forward();
    // One step after the other, so that `why` names the one that was refused.
    take(graph_.validate());
    if (why_.empty()) take(graph_.build_operation_graph(static_cast<cudnnHandle_t>(handle)));
    if (why_.empty()) take(graph_.create_execution_plans({fe::HeurMode_t::A}));
    if (why_.empty()) take(graph_.check_support());
    if (why_.empty()) take(graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
    if (why_.empty()) take(graph_.get_workspace_size(workspace_bytes_));
  }

  const std::string& why() const { return why_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(void* handle, const CudnnArguments& a, void* workspace) const override {
    const AttentionShape& s = case_.shape;
    const int64_t group = s.heads / s.kv_heads;
    const int64_t sequences = ragged() ? case_.max_documents : s.rows / case_.seq_len;
    for (int64_t sequence = 0; sequence < sequences; sequence += part_.sequences)
      for (int64_t kv_head = 0; kv_head < s.kv_heads; kv_head += part_.kv_heads) {
        const int64_t row = sequence * case_.seq_len, head = kv_head * group;
        const auto at = [](void* base, int64_t element, int64_t size) {
          return static_cast<void*>(static_cast<std::byte*>(base) + element * size);
        };
        const int64_t q = row * s.width() + head * s.head_dim,
                      k = row * s.width() + s.k_column(static_cast<int>(kv_head)),
                      v = row * s.width() + s.v_column(static_cast<int>(kv_head)),
                      o = row * s.out_width() + head * s.v_head_dim;
        const int64_t stats =
            case_.backward && !ragged() ? (sequence * s.heads + head) * case_.seq_len : row * s.heads + head;
        std::unordered_map<int64_t, void*> pack{{kQ, at(a.qkv, q, 2)},
                                                {kK, at(a.qkv, k, 2)},
                                                {kV, at(a.qkv, v, 2)},
                                                {kO, at(a.out, o, 2)},
                                                {kStats, at(a.stats, stats, 4)}};
        if (case_.backward) {
          pack[kDO] = at(a.dout, o, 2);
          pack[kDQ] = at(a.dqkv, q, 2);
          pack[kDK] = at(a.dqkv, k, 2);
          pack[kDV] = at(a.dqkv, v, 2);
        }
        if (ragged()) {
          pack[kLengths] = a.documents.lengths;
          pack[kQkvAt] = a.documents.qkv_at;
          pack[kOutAt] = a.documents.out_at;
          pack[kStatsAt] = a.documents.stats_at;
        }
        if (auto status = graph_.execute(static_cast<cudnnHandle_t>(handle), pack, workspace);
            status.is_bad())
          base::fail_with(base::ExitCode::Hardware, "cuDNN attention: {}", status.get_message());
      }
  }

 private:
  using Tensor = std::shared_ptr<Tensor_attributes>;

  void take(fe::error_t status) {
    if (status.is_bad())
      why_ = status.get_message().empty() ? "refused without a reason" : status.get_message();
  }

  bool ragged() const { return case_.max_documents > 0; }

  // [sequences, heads, seq_len, width] inside rows of `row` elements; documents begin where `at` says.
  Tensor_attributes strided(int64_t heads, int64_t width, int64_t row, const Tensor& at) const {
    Tensor_attributes t;
    t.set_dim({part_.sequences, heads, case_.seq_len, width})
        .set_stride({case_.seq_len * row, width, row, 1});
    if (at) t.set_ragged_offset(at);
    return t;
  }
  int64_t heads() const { return part_.kv_heads * (case_.shape.heads / case_.shape.kv_heads); }
  Tensor_attributes q() const { return strided(heads(), case_.shape.head_dim, case_.shape.width(), qkv_at_); }
  Tensor_attributes k() const {
    return strided(part_.kv_heads, case_.shape.head_dim, case_.shape.width(), qkv_at_);
  }
  Tensor_attributes v() const {
    return strided(part_.kv_heads, case_.shape.v_head_dim, case_.shape.width(), qkv_at_);
  }
  Tensor_attributes o() const {
    return strided(heads(), case_.shape.v_head_dim, case_.shape.out_width(), out_at_);
  }
  // [T, H] as it is kept.
  Tensor_attributes stats() const { return strided(heads(), 1, case_.shape.heads, stats_at_); }

  Tensor input(Tensor_attributes t, const char* name, Id id) {
    return graph_.tensor(t.set_name(name).set_uid(id));
  }
  static void output(const Tensor& t, Tensor_attributes like, const char* name, Id id) {
    t->set_output(true).set_name(name).set_uid(id).set_dim(like.get_dim()).set_stride(like.get_stride());
    if (const Tensor at = like.get_ragged_offset()) t->set_ragged_offset(at);
  }

  void describe_documents() {
    const auto column = [&](int64_t count, fe::DataType_t type, const char* name, Id id) {
      return input(Tensor_attributes().set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}).set_data_type(type),
                   name, id);
    };
    const int64_t count = case_.max_documents;
    lengths_ = column(count, fe::DataType_t::INT32, "lengths", kLengths);
    qkv_at_ = column(count + 1, fe::DataType_t::INT64, "qkv_at", kQkvAt);
    out_at_ = column(count + 1, fe::DataType_t::INT64, "out_at", kOutAt);
    stats_at_ = column(count + 1, fe::DataType_t::INT64, "stats_at", kStatsAt);
  }

  template <class Attributes>
  Attributes options() const {
    Attributes a;
    a.set_name("attention")
        .set_attn_scale(static_cast<float>(case_.shape.scale))
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
    // Row i keeps column j while j + bound > i.
    if (case_.shape.window > 0 && case_.shape.window < case_.seq_len)
      a.set_diagonal_band_left_bound(static_cast<int>(case_.shape.window));
    if (ragged()) a.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
    return a;
  }

  void describe_forward() {
    auto attributes = options<fe::graph::SDPA_attributes>();
    attributes.set_generate_stats(true);
    auto [out, lse] = graph_.sdpa(input(q(), "q", kQ), input(k(), "k", kK), input(v(), "v", kV), attributes);
    output(out, o(), "out", kO);
    output(lse, stats(), "stats", kStats);
    lse->set_data_type(fe::DataType_t::FLOAT);
  }

  void describe_backward() {
    auto attributes = options<fe::graph::SDPA_backward_attributes>();
    attributes.set_deterministic_algorithm(case_.deterministic);
    const int64_t h = heads(), n = case_.seq_len;
    Tensor_attributes lse = stats();
    if (!ragged()) lse.set_stride({h * n, n, 1, 1});
    if (ragged())
      attributes.set_max_total_seq_len_q(case_.shape.rows).set_max_total_seq_len_kv(case_.shape.rows);
    auto [dq, dk, dv] =
        graph_.sdpa_backward(input(q(), "q", kQ), input(k(), "k", kK), input(v(), "v", kV),
                             input(o(), "out", kO), input(o(), "dout", kDO),
                             input(lse.set_data_type(fe::DataType_t::FLOAT), "stats", kStats), attributes);
    output(dq, q(), "dq", kDQ);
    output(dk, k(), "dk", kDK);
    output(dv, v(), "dv", kDV);
  }

  CudnnCase case_;
  Part part_;
  Graph graph_;
  Tensor lengths_, qkv_at_, out_at_, stats_at_;  // of documents
  int64_t workspace_bytes_ = 0;
  std::string why_;
};

auto key_of(const CudnnCase& c) {
  const AttentionShape& s = c.shape;
  return std::make_tuple(s.rows, s.heads, s.kv_heads, s.head_dim, s.v_head_dim, s.window, s.scale, c.seq_len,
                         c.max_documents, c.backward, c.deterministic);
}

}  // namespace

std::shared_ptr<const CudnnAttention> cudnn_attention(const CudnnCase& want, void* handle, std::string* why) {
  static std::mutex mutex;
  static std::map<decltype(key_of(want)), std::shared_ptr<const Plan>> plans;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const Plan>& plan = plans[key_of(want)];
  if (!plan) plan = std::make_shared<const Plan>(want, handle);
  if (plan->why().empty()) return plan;
  if (why) *why = plan->why();
  return nullptr;
}

}  // namespace pleat::kernels::attention
