// Keys of [parallel] and [comm].
#include "config/schema.h"

namespace pleat::config {

namespace {

void add_comm_keys(std::vector<Key>& keys) {
  using C = CommConfig;
  const auto key = [](const char* name, auto C::*field, std::string meaning) {
    return make_key(std::string("comm.") + name, &Config::comm, field, std::move(meaning));
  };
  keys.push_back(
      key("timeout", &C::timeout,
          "Seconds after which a call to other ranks that has not ended is a stall: a table says who waits "
          "for whom, and the run ends with code 75. 0 waits for ever; a run that was asked to stop (SIGTERM, "
          "Ctrl-C) and is stuck in a call, for 300 seconds.")
          .range(0, 1e6)
          .when(on_ranks(RankCount::Several)));
  keys.push_back(
      key("check", &C::check,
          "Compare stage, sequence number and sizes of every collective across its ranks before it runs.")
          .when(on_ranks(RankCount::Several)));
  keys.push_back(
      key("mpi_native", &C::mpi_native,
          "Under MPI: take the library's own reductions. Their order of sums is the library's choice, so the "
          "last bits may differ from those of thread ranks.")
          .when(on_ranks(RankCount::Several)));
  keys.push_back(
      key("exchange_sms", &C::exchange_sms,
          "A store into windows of other ranks has at most as many blocks as fit on this many "
          "multiprocessors of a GPU at a time, which leaves room to products beside it; the GPU chooses "
          "where they run. 0: on all.")
          .range(0, 1024)
          .when({"experts are spread and rows move through windows: device.kind = \"cuda\", "
                 "parallel.dispatcher = \"alltoall\" and parallel.exchange is auto or windows",
                 {"device.kind", "parallel.dispatcher", "parallel.exchange", "parallel.ep", "parallel.etp"},
                 [](const Config& c) {
                   return c.device.kind == "cuda" && c.parallel.ep * c.parallel.etp > 1 &&
                          c.parallel.dispatcher == "alltoall" &&
                          (c.parallel.exchange == "auto" || c.parallel.exchange == "windows");
                 }})
          .see({"parallel.exchange"}));
}

}  // namespace

std::vector<Key> parallel_keys() {
  using P = ParallelConfig;
  constexpr double kMost = 1 << 20;
  const auto key = [](const char* name, auto P::*field, std::string meaning) {
    return make_key(std::string("parallel.") + name, &Config::parallel, field, std::move(meaning));
  };
  std::vector<Key> keys;
  keys.push_back(
      key("tp", &P::tp,
          "Tensor parallel: ranks that share each matrix of attention, dense and shared MLPs, embedding and "
          "head. The ranks of a run are tp x cp x pp x dp; dp is what is left.")
          .range(1, kMost)
          .see({"parallel.cp", "parallel.pp", "parallel.etp"}));
  keys.push_back(key("cp", &P::cp, "Context parallel: ranks that share each sequence.")
                     .range(1, kMost)
                     .see({"parallel.tp", "train.seq_len"}));
  keys.push_back(key("pp", &P::pp, "Pipeline parallel: ranks the layers are spread over, one after another.")
                     .range(1, kMost)
                     .see({"parallel.vpp", "parallel.pipeline_layout"}));
  keys.push_back(
      key("vpp", &P::vpp,
          "Model chunks on each pipeline rank. With more than one, a microbatch passes all ranks that often, "
          "and the idle time at both ends of a step shrinks.")
          .range(1, 4096)
          .see({"parallel.pp", "parallel.pipeline_layout"}));
  keys.push_back(
      key("ep", &P::ep,
          "Expert parallel: ranks the experts of a layer are spread over. For experts the same ranks are "
          "etp x ep x pp x edp; edp is what is left.")
          .range(1, kMost)
          .see({"parallel.etp", "moe.num_experts"}));
  keys.push_back(
      key("etp", &P::etp,
          "Expert tensor parallel: ranks that share each expert's matrices; apart from parallel.tp.")
          .range(1, kMost)
          .see({"parallel.ep", "parallel.tp"}));
  keys.push_back(
      key("order", &P::order,
          "Which axis neighbouring ranks lie on, fastest first: the names tp, cp, ep, dp and pp, each once. "
          "With pp before others, stages must lie on the same ranks for attention and experts.")
          .when(on_ranks(RankCount::Several))
          .see({"parallel.tp", "parallel.pp"}));
  keys.push_back(
      key("pipeline_layout", &P::pipeline_layout,
          "What each model chunk holds: E embedding, t decoder layer, m multi-token prediction layer, L "
          "loss; "
          "| begins the next chunk; x*n and (...)*n repeat. Chunk i is chunk i / pp of pipeline rank i % pp. "
          "Empty: the layers evenly, embedding first, loss last. As in \"Et|(ttt|)*2tL\" for 8 layers with "
          "parallel.pp = 4.")
          .see({"parallel.pp", "parallel.vpp", "model.num_layers"}));
  keys.push_back(
      key("dispatcher", &P::dispatcher,
          "How tokens reach experts on other ranks. alltoall: each row to the ranks of its experts. "
          "allgather: "
          "all rows to all ranks of the group, which keep what is theirs. Both give the same bits.")
          .one_of({"alltoall", "allgather"})
          .when({"experts are spread: parallel.ep x parallel.etp > 1",
                 {"parallel.ep", "parallel.etp"},
                 [](const Config& c) { return c.parallel.ep * c.parallel.etp > 1; }})
          .see({"parallel.ep", "parallel.etp"}));
  keys.push_back(
      key("exchange", &P::exchange,
          "How dispatcher alltoall moves rows. counted: exactly the rows there are; on GPUs the host must "
          "know how many, and waits for the device once per exchange. padded: as many as there could be, so "
          "nobody waits, and more bytes move. windows: ranks store rows into each other's memory, a token "
          "once per rank, and nobody waits; all ranks that share experts must reach each other's memory. "
          "auto: windows between GPUs that do, else counted. All give the same bits.")
          .one_of({"auto", "counted", "padded", "windows"})
          .when({"experts are spread and parallel.dispatcher = \"alltoall\"",
                 {"parallel.ep", "parallel.etp", "parallel.dispatcher"},
                 [](const Config& c) {
                   return c.parallel.ep * c.parallel.etp > 1 && c.parallel.dispatcher == "alltoall";
                 }})
          .see({"parallel.dispatcher", "comm.exchange_sms"}));
  keys.push_back(
      key("context", &P::context,
          "How context ranks see each other's rows in attention. allgather: keys and values of all rows come "
          "to every rank. alltoall: every rank takes all rows of some heads (cp must divide them). ring: "
          "keys "
          "and "
          "values of one rank after the other pass by, the next ones on their way while the present ones are "
          "worked on; needs the least memory.")
          .one_of({"allgather", "alltoall", "ring"})
          .when({"parallel.cp > 1", {"parallel.cp"}, [](const Config& c) { return c.parallel.cp > 1; }})
          .see({"parallel.cp"}));
  keys.push_back(
      key("bucket_mib", &P::bucket_mib,
          "Gradients are summed over the replicas, and weights gathered from their owners, in buckets of "
          "several parameters of at most this many MiB of gradients: one message each. 0: each parameter by "
          "itself. The results are the same bits.")
          .range(0, 1 << 20)
          .when(on_ranks(RankCount::Several))
          .see({"parallel.optimizer_group"}));
  keys.push_back(
      key("optimizer_group", &P::optimizer_group,
          "Replicas of a weight that share one copy of its optimizer state, each updating its part. 0: all "
          "of them. A smaller number gathers weights from that many ranks only and costs memory: the state "
          "is repeated. It must divide the number of replicas, or be larger.")
          .range(0, kMost)
          .when(on_ranks(RankCount::Several))
          .see({"parallel.bucket_mib"}));
  keys.push_back(
      key("ranks_per_node", &P::ranks_per_node,
          "Ranks that share a machine, neighbours in rank order; the last machine may have fewer. `pleat "
          "layout` then says which groups cross machines, `pleat simulate` puts so many on a node, and "
          "`pleat "
          "train` stops where the launcher started another number. 0: not declared; simulate takes as many "
          "as "
          "a node of its machine has.")
          .range(0, kMost)
          .when(on_ranks(RankCount::Several))
          .see({"parallel.order"}));
  add_comm_keys(keys);
  return keys;
}

}  // namespace pleat::config
