// A program whose state lies in two spaces, on the device and pinned on the host: what is saved from it and restored into
// another one arrives where the program finds it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/sim_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "program/builder.h"
#include "runtime/runtime.h"

namespace pleat::runtime::testing {

inline program::Program two_spaces(int64_t elements) {
  using program::Life, program::Op, program::Owner, program::r, program::w;
  program::Builder b("two spaces");
  b.lane("compute", "compute");
  const auto value = [&](const std::string& name, Life life) {
    return b.value(name, tensor::Dtype::F32, {elements}, Owner::Weights, life);
  };
  const auto pinned = value("pinned", Life::Persistent), device = value("device", Life::Persistent),
             moved = value("moved", Life::Step), pinned_out = value("pinned.out", Life::Result),
             device_out = value("device.out", Life::Result);
  b.at({.microbatch = 0});
  b.forward(Op::copy_in, {r(pinned), w(moved)});
  b.at({.microbatch = 0, .part = 1});
  b.forward(Op::copy_out, {r(moved), w(pinned_out)});
  b.at({.microbatch = 0, .part = 2});
  b.forward(Op::copy_out, {r(device), w(device_out)});
  program::Program p = b.take();
  p.lanes[0].resource = "host_link";
  for (const auto id : {pinned, pinned_out, device_out})
    p.values[static_cast<size_t>(id)].space = program::Space::Pinned;
  return p;
}

inline std::vector<float> result_of(Runtime& runtime, const std::string& name, int64_t elements) {
  const auto* at = static_cast<const float*>(runtime.executor().data(name));
  return {at, at + elements};
}

inline void check_state_in_two_spaces(Device device, const MakeCarrier& carrier) {
  constexpr int64_t kElements = 5001;
  Options options;
  options.device = device, options.carrier = carrier;
  const auto make = [&] {
    std::vector<Planned> one;
    one.push_back(planned(two_spaces(kElements)));
    return std::make_unique<Runtime>(std::move(one), options);
  };
  std::vector<float> pinned(kElements), on_device(kElements);
  std::iota(pinned.begin(), pinned.end(), 1.0f), std::iota(on_device.begin(), on_device.end(), 10000.0f);
  base::SimVfs vfs;
  checkpoint::SaveResult saved;
  {
    const std::unique_ptr<Runtime> first = make();
    first->target("pinned").bytes.write(0, std::as_bytes(std::span(pinned)));
    first->target("device").bytes.write(0, std::as_bytes(std::span(on_device)));
    checkpoint::StateView view;
    view.tensors = first->tensors();
    saved = checkpoint::save(vfs, "run", view, {});
    EXPECT_EQ(checkpoint::state_sha256(view), saved.state_sha256);
  }
  const std::unique_ptr<Runtime> second = make();
  for (const checkpoint::Target& t : second->targets()) t.bytes.zero();
  second->executor().run();
  EXPECT_EQ(result_of(*second, "device.out", kElements), std::vector<float>(kElements));
  checkpoint::restore(checkpoint::open(vfs, saved.path), second->targets());
  for (int run = 0; run < 2; ++run) {  // the second one may be a graph
    second->executor().run();
    EXPECT_EQ(result_of(*second, "pinned.out", kElements), pinned);
    EXPECT_EQ(result_of(*second, "device.out", kElements), on_device);
  }
  // A run's own stores show: nothing is kept of what was read before.
  std::vector<float> now(kElements);
  second->read("device", std::as_writable_bytes(std::span(now)));
  EXPECT_EQ(now, on_device);
  second->target("device").bytes.write(0, std::as_bytes(std::span(pinned)));
  second->read("device", std::as_writable_bytes(std::span(now)));
  EXPECT_EQ(now, pinned);
}

}  // namespace pleat::runtime::testing
