#include "train/leader_work.h"

#include <chrono>
#include <future>

namespace pleat::train {

namespace {

constexpr std::chrono::milliseconds kBetweenSigns{100};

}  // namespace

void work_on_leader(const runtime::Crew& crew, const char* stage, const std::function<void()>& work) {
  if (crew.alone()) return work();
  std::future<void> done;
  if (crew.leads()) done = std::async(std::launch::async, work);
  const auto works = [&] {
    return crew.leads() && done.wait_for(kBetweenSigns) != std::future_status::ready;
  };
  while (crew.any(stage, works())) {
  }
  if (crew.leads()) done.get();
}

}  // namespace pleat::train
