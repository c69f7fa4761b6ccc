// Weights from the seed on every rank of a layout: narrow weights and the shares of their rests are one set
// of floats, whatever the layout.
#include "runtime/initialize.h"

#include <gtest/gtest.h>

#include <map>

#include "model/parameters.h"
#include "tensor/halves.h"
#include "train/train_support.h"

namespace pleat::train {
namespace {

struct Layout {
  int ranks;
  std::vector<std::string> sets;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {2, {}},
      {3, {}},
      {2, {"parallel.tp=2"}},
      {2, {"parallel.ep=2"}},
      {4, {"parallel.ep=2", "parallel.tp=2"}},
      {4, {"parallel.ep=2", "parallel.etp=2"}},
      {4, {"parallel.optimizer_group=2"}},
      {4, {"parallel.tp=2", "parallel.optimizer_group=1"}},
      {4, {"parallel.cp=2"}},
  };
  return all;
}

config::Config config_of(const Layout& layout) {
  std::vector<std::string> sets = {"model.dtype=\"bfloat16\"", "device.kind=\"cuda\"",
                                   "train.num_microbatches=12", "train.seq_len=8",
                                   "moe.num_experts=8"};  // 37 words are padded over two
  sets.insert(sets.end(), layout.sets.begin(), layout.sets.end());
  return testing::small_config("", sets);
}

// One value of the state; what runtime::initialize_state leaves alone would show.
template <class T>
std::vector<T> value_of(const std::string& name, int64_t elements, const std::vector<model::Parameter>& table,
                        const config::Config& c, const runtime::RankSetup& rank, tensor::Dtype dtype) {
  device::Pool pool(1);
  std::vector<T> out(static_cast<size_t>(elements), T{77});
  runtime::initialize_state(name, table, static_cast<uint64_t>(c.train.seed), rank.mesh, rank.place, dtype,
                            std::as_writable_bytes(std::span(out)), pool);
  return out;
}

TEST(Initialize, NarrowWeightsAndTheSharesOfTheirRestsAreTheFloatsOfTheSeed) {
  for (const Layout& layout : layouts()) {
    const config::Config c = config_of(layout);
    const std::vector<model::Parameter> table = model::make_parameters(c);
    const runtime::RankSetup alone = runtime::rank_setup(config_of({1, {}}), 1, 0);
    for (const model::Parameter& p : table) {
      if (!p.tied_to.empty()) continue;
      SCOPED_TRACE(fmt::format("{} ranks {} {}", layout.ranks,
                               layout.sets.empty() ? "data parallel" : layout.sets.front(), p.name));
      EXPECT_TRUE(runtime::comes_from_seed(p.name, table));
      EXPECT_TRUE(runtime::comes_from_seed(p.name + model::kRest, table));
      EXPECT_FALSE(runtime::comes_from_seed(p.name + ".moment1", table));
      const std::vector<float> whole =
          value_of<float>(p.name, model::num_elements(p), table, c, alone, tensor::Dtype::F32);
      std::map<int64_t, int> owners;  // of logical elements, per group of owners
      for (int r = 0; r < layout.ranks; ++r) {
        const runtime::RankSetup rank = runtime::rank_setup(c, layout.ranks, r);
        const model::Ownership own = model::ownership(p, rank.mesh);
        const auto runs = model::local_runs(p, rank.mesh, rank.place.weights());
        const auto weight = value_of<uint16_t>(p.name, own.elements, table, c, rank, tensor::Dtype::BF16);
        std::vector<int64_t> logical(static_cast<size_t>(own.elements), -1);
        for (const model::Run& run : runs)
          for (int64_t i = 0; i < run.count; ++i)
            logical[static_cast<size_t>(run.local_begin + i)] = run.logical_begin + i;
        for (size_t i = 0; i < logical.size(); ++i)
          ASSERT_EQ(weight[i],
                    logical[i] < 0 ? 0 : tensor::split(whole[static_cast<size_t>(logical[i])]).high)
              << "element " << i << " of rank " << r;

        const int64_t count = own.num_owners == 1 ? own.elements : own.share;
        const auto rest = value_of<int16_t>(p.name + model::kRest, count, table, c, rank, tensor::Dtype::I16);
        const int64_t begin = own.num_owners == 1 ? 0 : own.share * rank.place.at(own.inside);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t at = begin + i;
          const int64_t element = at < own.elements ? logical[static_cast<size_t>(at)] : -1;
          ASSERT_EQ(rest[static_cast<size_t>(i)],
                    element < 0 ? 0 : tensor::split(whole[static_cast<size_t>(element)]).rest)
              << "element " << i << " of the share of rank " << r;
          if (element >= 0) ++owners[element];
        }
      }
      ASSERT_EQ(static_cast<int64_t>(owners.size()), model::num_elements(p)) << "elements without an owner";
    }
  }
}

}  // namespace
}  // namespace pleat::train
