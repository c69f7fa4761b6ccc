#include <fmt/format.h>

#include <cstdlib>

#include "verify/grid.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

// Deep enough for four stages, with every kind of layer and loss.
const std::vector<std::string> kGrid = {
    "model.num_layers=4",           "model.leading_dense_layers=1",
    "model.ffn_hidden_size=24",     "moe.ffn_hidden_size=12",
    "moe.shared_ffn_hidden_size=8", "moe.load_balancing=[\"aux\",\"seq_aux\"]",
    "moe.aux_coef=[0.02,0.03]",     "moe.z_coef=0.002",
    "train.micro_batch=1",          "train.loss_chunk=6",
};

}  // namespace

std::string GridCase::name() const {
  const model::Mesh& m = mesh;
  std::string out =
      fmt::format("{} tp{} cp{} dp{} pp{} vpp{} ep{} etp{} edp{} mb{} {}", latent ? "mla" : "gqa", m.tp, m.cp,
                  m.dp, m.pp, m.vpp, m.ep, m.etp, m.edp, num_microbatches, pad ? "pad" : "dropless");
  if (m.context == model::ContextKind::Ring) out += " ring";
  if (!recompute.empty()) out += " recomputed " + recompute;
  return out;
}

std::vector<GridCase> grid() {
  std::vector<GridCase> out;
  for (const int64_t world : {1, 2, 4, 8})
    for (const int64_t tp : {1, 2, 4})
      for (const int64_t cp : {1, 2})
        for (const int64_t pp : {1, 2, 4})
          for (const int64_t vpp : {1, 2})
            for (const int64_t ep : {1, 2, 4, 8})
              for (const int64_t etp : {1, 2}) {
                if (world % (tp * cp * pp) != 0 || world % (ep * etp * pp) != 0) continue;
                if (vpp > 1 && pp == 1) continue;
                for (const int64_t mb : {1, 2, 4})
                  for (const bool pad : {false, true})
                    for (const bool latent : {false, true}) {
                      GridCase c;
                      c.mesh.tp = tp, c.mesh.cp = cp, c.mesh.pp = pp, c.mesh.vpp = vpp, c.mesh.ep = ep;
                      c.mesh.etp = etp, c.mesh.dp = world / (tp * cp * pp),
                      c.mesh.edp = world / (ep * etp * pp);
                      c.num_microbatches = mb;
                      c.pad = pad;
                      c.latent = latent;
                      // Both dispatchers and both ways of context take their turns.
                      const size_t turn = out.size();
                      c.mesh.dispatcher =
                          turn % 2 ? model::Dispatcher::AllGather : model::Dispatcher::AllToAll;
                      c.mesh.context = turn % 3 && tp * cp <= 4 ? model::ContextKind::AllGather
                                                                : model::ContextKind::AllToAll;
                      if (tp * cp > 4) c.mesh.context = model::ContextKind::AllGather;
                      // So do sizes of buckets (one parameter, a few, all) and of the groups of owners.
                      c.mesh.bucket_bytes = turn % 4 == 1 ? 0 : turn % 4 == 2 ? 6000 : c.mesh.bucket_bytes;
                      c.mesh.optimizer_group = turn % 5 == 3 ? 2 : turn % 35 == 4 ? 1 : 0;
                      out.push_back(c);
                    }
              }
  return out;
}

std::vector<GridCase> ring_grid() {
  std::vector<GridCase> out;
  for (const int64_t world : {2, 4, 8})
    for (const int64_t cp : {2, 4})
      for (const int64_t tp : {1, 2, 4})
        for (const int64_t pp : {1, 2, 4})
          for (const int64_t vpp : {1, 2})
            for (const int64_t ep : {1, 2, 4, 8})
              for (const int64_t etp : {1, 2})
                for (const bool latent : {false, true}) {
                  if (world % (tp * cp * pp) != 0 || world % (ep * etp * pp) != 0) continue;
                  if (vpp > 1 && pp == 1) continue;
                  const size_t turn = out.size();
                  GridCase c;
                  c.mesh.tp = tp, c.mesh.cp = cp, c.mesh.pp = pp, c.mesh.vpp = vpp, c.mesh.ep = ep;
                  c.mesh.etp = etp, c.mesh.dp = world / (tp * cp * pp), c.mesh.edp = world / (ep * etp * pp);
                  c.mesh.context = model::ContextKind::Ring;
                  c.mesh.dispatcher =
                      turn / 2 % 2 ? model::Dispatcher::AllGather : model::Dispatcher::AllToAll;
                  c.num_microbatches = turn / 2 % 3 == 2 ? 2 : 4;
                  c.pad = turn / 2 % 4 == 3;
                  c.recompute = turn % 5 == 1 ? "core_attention" : turn % 5 == 3 ? "layer" : "";
                  c.latent = latent;
                  out.push_back(c);
                }
  return out;
}

bool whole_grid() {
  const char* asked = std::getenv("PLEAT_GRID");
  return asked && std::string(asked) == "all";
}

config::Config parallel_config(const GridCase& c, const std::string& dtype) {
  config::Config config = grid_config(c, dtype);
  const model::Mesh& m = c.mesh;
  config::ParallelConfig& p = config.parallel;
  p.tp = m.tp, p.cp = m.cp, p.pp = m.pp, p.vpp = m.vpp, p.ep = m.ep, p.etp = m.etp;
  p.dispatcher = m.dispatcher == model::Dispatcher::AllGather ? "allgather" : "alltoall";
  p.context = std::string(name_of(m.context));
  if (m.world() > 1) p.optimizer_group = m.optimizer_group;
  return config;
}

config::Config grid_config(const GridCase& c, const std::string& dtype,
                           const std::vector<std::string>& more) {
  std::vector<std::string> sets = kGrid;
  sets.insert(sets.end(), more.begin(), more.end());
  sets.insert(sets.end(), {fmt::format("train.num_microbatches={}", c.num_microbatches),
                           fmt::format("model.dtype=\"{}\"", dtype)});
  if (c.mesh.pp * c.mesh.vpp > 4) sets.push_back("model.num_layers=8");
  if (c.pad) sets.insert(sets.end(), {"moe.capacity_factor=1.0", "moe.pad_to_capacity=true"});
  if (!c.recompute.empty()) sets.push_back(fmt::format("recompute.modules=[\"{}\"]", c.recompute));
  if (c.latent)
    sets.insert(sets.end(), {"model.attention=\"mla\"", "model.q_lora_rank=6", "model.kv_lora_rank=6",
                             "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=4", "model.v_head_dim=4",
                             "model.num_kv_heads=", "model.head_dim="});
  else
    sets.insert(sets.end(), {"model.num_kv_heads=4", "model.qk_norm=true"});
  return small_model(sets);
}

std::vector<model::Role> even_roles(const config::Config& c, const model::Mesh& m) {
  if (m.pp == 1) return {};
  std::vector<model::Role> roles(static_cast<size_t>(m.pp));
  const int stages = static_cast<int>(m.pp * m.vpp), layers = static_cast<int>(c.model.num_layers);
  for (int s = 0; s < stages; ++s) {
    model::Role& r = roles[static_cast<size_t>(s % m.pp)];
    r.pipeline_rank = static_cast<int>(s % m.pp);
    model::Chunk chunk;
    chunk.embedding = s == 0;
    chunk.head = s == stages - 1;
    for (int l = s * layers / stages; l < (s + 1) * layers / stages; ++l) chunk.layers.push_back(l);
    r.chunks.push_back(chunk);
  }
  return roles;
}

std::string refusal(const GridCase& c) {
  std::string out;
  for (const model::LayoutFault& f : model::layout_faults(grid_config(c, "float64"), c.mesh))
    out += (out.empty() ? "" : ", ") + f.rule;
  return out;
}

LayoutRun reference_of(const GridCase& c, const config::Config& config, RunOptions options) {
  model::Mesh one;
  if (c.pad) {
    one.pieces = c.mesh.tp * c.mesh.cp;
    options.pieces_of = c.mesh;
  }
  return run_layout(config, one, {}, options);
}

}  // namespace pleat::verify
