// A pipeline rank's training step: its chunks in the order of the schedule, with what crosses a cut of the
// model sent and received on lanes of their own, so that neither direction waits for the other.
#include "schedule/build.h"
#include "schedule/pipeline_order.h"

namespace pleat::schedule {
namespace {

using program::Op;
using program::Peer;
using program::Phase;
using program::r;
using program::ValueId;
using program::w;

class PipelineBuilder {
 public:
  PipelineBuilder(const config::Config& config, model::Decoder& decoder)
      : config_(config),
        d_(decoder),
        send_forward_(d_.b.lane("send_forward", "links")),
        receive_forward_(d_.b.lane("receive_forward", "links")),
        send_backward_(d_.b.lane("send_backward", "links")),
        receive_backward_(d_.b.lane("receive_backward", "links")) {}

  void forward(const Slot& slot) {
    const size_t c = size_t(slot.chunk), mb = size_t(slot.microbatch);
    const int at = virtual_stage(slot.chunk);
    d_.b.in_chunk(slot.chunk);
    if (at > 0) {
      d_.chunk_in[c][mb] = boundary(slot, "x_in");
      d_.b.at({slot.microbatch, -1, at - 1, slot.chunk}, receive_forward_);
      d_.b.transfer(Op::receive_x, Phase::Forward, Peer::Previous, {w(d_.chunk_in[c][mb])});
    }
    model::forward(d_, slot.microbatch, slot.chunk);
    if (at == last_stage()) return;
    d_.b.at({slot.microbatch, -1, at, slot.chunk}, send_forward_);
    d_.b.transfer(Op::send_x, Phase::Forward, Peer::Next, {r(d_.chunk_out[c][mb])});
  }

  void backward(const Slot& slot) {
    const size_t c = size_t(slot.chunk), mb = size_t(slot.microbatch);
    const int at = virtual_stage(slot.chunk);
    d_.b.in_chunk(slot.chunk);
    ValueId d_out = program::kNoValue;
    if (at < last_stage()) {
      d_out = boundary(slot, "d_out");
      d_.b.at({slot.microbatch, -1, at, slot.chunk}, receive_backward_);
      d_.b.transfer(Op::receive_x, Phase::BackwardInput, Peer::Next, {w(d_out)});
    }
    model::backward(d_, slot.microbatch, slot.chunk, d_out);
    if (at == 0) return;
    d_.b.at({slot.microbatch, -1, at - 1, slot.chunk}, send_backward_);
    d_.b.transfer(Op::send_x, Phase::BackwardInput, Peer::Previous, {r(d_.d_chunk_in[c][mb])});
  }

 private:
  int virtual_stage(int chunk) const { return chunk * static_cast<int>(d_.mesh.pp) + d_.role.pipeline_rank; }
  int last_stage() const { return static_cast<int>(d_.mesh.pp * d_.mesh.vpp) - 1; }
  ValueId boundary(const Slot& slot, const char* what) {
    return d_.b.value(program::tagged(what, slot.microbatch, -1, slot.chunk), d_.compute,
                      {d_.num_tokens, config_.model.hidden_size}, program::Owner::Activations);
  }

  const config::Config& config_;
  model::Decoder& d_;
  int send_forward_, receive_forward_, send_backward_, receive_backward_;
};

}  // namespace

program::Program build_pipeline_step(const config::Config& config, const std::vector<model::Parameter>& table,
                                     const BuildOptions& options) {
  program::Builder builder("train");
  const int n = static_cast<int>(config.train.num_microbatches / options.mesh.dp);
  model::Decoder decoder = model::declare(
      config, table, builder, {model::Purpose::Train, n, options.routing, options.mesh, options.role});
  if (!decoder.mtp.empty()) model::mtp_prepare(decoder);
  PipelineBuilder pipeline(config, decoder);
  PipelineShape shape;
  shape.num_ranks = static_cast<int>(options.mesh.pp);
  shape.rank = decoder.role.pipeline_rank;
  shape.num_microbatches = n;
  shape.num_chunks = static_cast<int>(options.mesh.vpp);
  for (const Slot& slot : pipeline_order(shape))
    slot.forward ? pipeline.forward(slot) : pipeline.backward(slot);
  builder.in_chunk(0);
  model::update(decoder);
  return builder.take();
}

program::Program build_pipeline_evaluation(const config::Config& config,
                                           const std::vector<model::Parameter>& table,
                                           const BuildOptions& options) {
  program::Builder builder("evaluate");
  model::Decoder decoder = model::declare(
      config, table, builder, {model::Purpose::Evaluate, 1, options.routing, options.mesh, options.role});
  PipelineBuilder pipeline(config, decoder);
  for (int chunk = 0; chunk < static_cast<int>(options.mesh.vpp); ++chunk) pipeline.forward({true, 0, chunk});
  model::finish_evaluation(decoder);
  return builder.take();
}

}  // namespace pleat::schedule
