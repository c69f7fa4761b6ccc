// Replicas of weights: what moves between the ranks that hold the same one.
//
// Every element of a parameter is updated by one owner (model/shard.h). A bucket is a list of parameters with the
// same owners, and gradients of one format, that become ready one after the other; it moves as one message. Which
// rank owns an element does not depend on the bucket, so neither do checkpoints, the blocks of the norm or any bit. A
// bucket of one parameter moves as it lies; the shares of several are copied side by side first. A parameter whose
// shares are whole units moves alone: side by side, shares are cut anywhere.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "model/decoder.h"
#include "model/words.h"
#include "program/shares.h"

namespace pleat::model {

using program::Use;

namespace {

const Ownership& owners_of(const Decoder& d, const Bucket& b) { return d.parameters[b.parameters[0]].own; }

bool is_packed(const Decoder& d, const Bucket& b) {
  // A state that is not cut is summed in place, which must not be the gradient the backward wrote.
  return b.parameters.size() > 1 || owners_of(d, b).num_owners == 1;
}

tensor::Dtype gradients_of(const Decoder& d, const Bucket& b) {
  return gradient_format(d.config, d.table[b.parameters[0]]);
}

// Elements of one rank's row.
int64_t row_of(const Decoder& d, const Bucket& b) {
  int64_t sum = 0;
  for (const size_t i : b.parameters)
    sum += program::share_stride(d.parameters[i].own.elements, d.parameters[i].own.num_owners);
  return sum;
}

ValueId packed_value(Decoder& d, const std::string& name, tensor::Dtype dtype, int64_t rows, int64_t row) {
  return d.b.value(name, dtype, {rows, row}, program::Owner::Workspace);
}

void reduce_packed(Decoder& d, const Bucket& b, const std::string& name) {
  const Ownership& own = owners_of(d, b);
  const int64_t row = row_of(d, b);
  const tensor::Dtype format = gradients_of(d, b);
  const ValueId share =
      d.b.value(name + ".grad_share", format,
                own.num_owners > 1 ? std::vector<int64_t>{row} : std::vector<int64_t>{1, row},
                program::Owner::Gradients);
  const ValueId packed =
      own.num_owners > 1 ? packed_value(d, name + ".grads", format, own.num_owners, row) : share;
  std::vector<Use> uses;
  for (const size_t i : b.parameters) uses.push_back(r(d.parameters[i].grad));
  uses.push_back(w(packed));
  d.b.wgrad(Op::grad_pack, std::move(uses));
  if (own.num_owners > 1)
    d.b.exchange(Op::grad_reduce, Phase::BackwardWeight, own.inside, {r(packed), w(share)},
                 {{"shard", double(row)}});
  if (own.num_copies > 1) d.b.exchange(Op::share_reduce, Phase::BackwardWeight, own.across, {u(share)});
  int64_t begin = 0;
  for (const size_t i : b.parameters) {
    ParameterValues& v = d.parameters[i];
    v.reduced = d.b.view(
        share, value_name(d.table[i], ".grad_share"),
        own.num_owners > 1 ? std::vector<int64_t>{v.own.share} : local_shape(d.table[i], d.mesh), begin);
    begin += program::share_stride(v.own.elements, v.own.num_owners);
  }
}

void reduce_one(Decoder& d, size_t i) {
  ParameterValues& v = d.parameters[i];
  v.reduced = d.b.value(value_name(d.table[i], ".grad_share"), gradient_format(d.config, d.table[i]),
                        {v.own.share}, program::Owner::Gradients);
  d.b.exchange(Op::grad_reduce, Phase::BackwardWeight, v.own.inside, {r(v.grad), w(v.reduced)},
               {{"shard", double(v.own.share)}});
  if (v.own.num_copies > 1)
    d.b.exchange(Op::share_reduce, Phase::BackwardWeight, v.own.across, {u(v.reduced)});
}

void ready(Decoder& d, size_t parameter) {
  for (size_t k = 0; k < d.buckets.size(); ++k) {
    Bucket& b = d.buckets[k];
    if (std::find(b.parameters.begin(), b.parameters.end(), parameter) == b.parameters.end()) continue;
    PLEAT_CHECK(b.num_waiting > 0, "the gradient of {} was complete before", d.table[parameter].name);
    if (--b.num_waiting > 0) return;
    const program::Place place = d.b.place();
    const int lane = d.b.lane_idx();
    d.b.at({place.microbatch, -1, static_cast<int>(k), place.chunk}, d.reduce_lane);
    if (is_packed(d, b))
      reduce_packed(d, b, fmt::format("bucket{}", k));
    else
      reduce_one(d, b.parameters[0]);
    d.b.at(place, lane);
    return;
  }
}

}  // namespace

std::vector<Bucket> make_buckets(const Decoder& d) {
  std::vector<Bucket> out;
  // Frozen parameters apart: what is not summed needs no gradient.
  using Kind = std::tuple<program::Group, bool, tensor::Dtype>;
  std::map<Kind, std::pair<size_t, int64_t>> open;  // -> bucket, its bytes
  for (size_t i = d.table.size(); i-- > 0;) {
    const ParameterValues& v = d.parameters[i];
    if (!v.here || !d.table[i].tied_to.empty() || !v.own.summed()) continue;
    const tensor::Dtype format = gradient_format(d.config, d.table[i]);
    const int64_t bytes =
        program::share_stride(v.own.elements, v.own.num_owners) * v.own.num_owners * tensor::size_of(format);
    if (d.table[i].unit > 1) {
      out.push_back({{i}, 1});
      continue;
    }
    const Kind key = {v.own.reduction, d.table[i].frozen, format};
    const auto found = open.find(key);
    if (found == open.end() || found->second.second + bytes > d.mesh.bucket_bytes) {
      open[key] = {out.size(), 0};
      out.emplace_back();
    }
    auto& [bucket, filled] = open[key];
    out[bucket].parameters.push_back(i);
    ++out[bucket].num_waiting;
    filled += bytes;
  }
  return out;
}

void gather_weights(Decoder& d) {
  if (d.buckets.empty()) return;
  if (d.purpose == Purpose::Train) d.reduce_lane = d.b.lane("reduce", "links");
  d.gather_lane = d.b.lane("gather", "links");
  // The last gradients to become ready are of the weights a forward needs first.
  for (size_t k = d.buckets.size(); k-- > 0;) {
    const Bucket& b = d.buckets[k];
    const Ownership& own = owners_of(d, b);
    if (own.num_owners == 1) continue;
    d.b.at({-1, -1, static_cast<int>(k)}, d.gather_lane);
    if (!is_packed(d, b)) {
      d.b.exchange(Op::weight_gather, Phase::Update, own.inside, {u(d.parameters[b.parameters[0]].weight)},
                   {{"shard", double(own.share)}});
      continue;
    }
    const std::string name = fmt::format("bucket{}", k);
    const int64_t row = row_of(d, b);
    const ValueId mine = packed_value(d, name + ".own_weights", d.compute, 1, row);
    const ValueId all = packed_value(d, name + ".weights", d.compute, own.num_owners, row);
    std::vector<Use> reads = {r(d.coords)}, writes = {r(all)};
    for (const size_t i : b.parameters)
      reads.push_back(r(d.parameters[i].weight)), writes.push_back(u(d.parameters[i].weight));
    reads.push_back(w(mine));
    d.b.update(Op::weight_pack, std::move(reads),
               {{"ranks", double(own.num_owners)}, {"group", double(static_cast<int>(own.inside))}});
    d.b.exchange(Op::bucket_gather, Phase::Update, own.inside, {r(mine), w(all)});
    d.b.update(Op::weight_unpack, std::move(writes));
  }
  d.b.at({-1, -1});
}

void gradients_ready(Decoder& d, int layer) {
  for (size_t i = d.table.size(); i-- > 0;)
    if (d.table[i].layer == layer && d.table[i].name != "embedding.weight" && d.table[i].tied_to.empty() &&
        d.parameters[i].here && d.parameters[i].own.summed())
      ready(d, i);
}

void embedding_gradient_ready(Decoder& d) {
  d.b.at({-1, -1});
  for (size_t i = 0; i < d.table.size(); ++i)
    if (d.table[i].name == "embedding.weight" && d.parameters[i].here && d.parameters[i].own.summed())
      ready(d, i);
}

}  // namespace pleat::model
