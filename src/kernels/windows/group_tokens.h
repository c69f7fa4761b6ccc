// What all_tokens says of this rank, for the CPU kernels of this folder: how many tokens go where.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels::windows {

class GroupTokens {
 public:
  GroupTokens(const Invocation& call, const Arg& all_tokens, const Arg& coords)
      : all_(all_tokens.as<int32_t>()),
        ranks_(all_tokens.dim(0)),
        stride_(all_tokens.dim(1)),
        copies_(call.integer("copies")),
        me_(coords.as<int64_t>()[static_cast<size_t>(program::Group::Dispatch)]) {
    if (me_ < 0 || me_ >= ranks_ || call.windows.size() != ranks_ || call.windows.own != me_)
      base::fail_with(base::ExitCode::Internal, "a group of {} ranks, {} windows, this rank is {} and {}",
                      ranks_, call.windows.size(), me_, call.windows.own);
  }

  int64_t ranks() const { return ranks_; }
  int64_t expert_ranks() const { return stride_ - 1; }
  int64_t copies() const { return copies_; }
  int64_t own_expert_rank() const { return me_ / copies_; }
  int64_t count(int64_t source, int64_t p) const {
    return all_[source * stride_ + p + 1] - all_[source * stride_ + p];
  }
  // Of the first token this rank sends to p, among those p gets.
  int64_t first_there(int64_t p) const {
    int64_t out = 0;
    for (int64_t s = 0; s < me_; ++s) out += count(s, p);
    return out;
  }
  // Where the answer to token i of `source` lies among those that come back to it from this rank.
  int64_t returned_row(int64_t source, int64_t i) const {
    const int64_t p = own_expert_rank();
    return copies_ * all_[source * stride_ + p] + me_ % copies_ * count(source, p) + i;
  }

 private:
  const int32_t* all_;
  int64_t ranks_, stride_, copies_, me_;
};

}  // namespace pleat::kernels::windows
