// Initial weights drawn on the GPU are the CPU's, bit for bit.
#include "runtime/initialize.h"

#include "cuda/cuda_support.h"
#include "device/cuda/random.h"
#include "model/parameters.h"
#include "runtime/programs.h"
#include "tensor/short_master.h"

namespace pleat::train {
namespace {

using kernels::testing::no_gpu;

TEST(InitializeCuda, PiecesOfAStreamAreTheNumbersOfTheCpu) {
  PLEAT_NEEDS_GPU();
  const base::RandomStream stream(99, base::RandomUse::Init, 0, 0);
  constexpr int64_t kSize = 40000;
  const std::vector<device::cuda::Drawn> pieces = {
      {7, 3, 1}, {100, 10, 17}, {5000000000, 40, 30001}, {1, 39999, 1}};
  std::vector<float> want(kSize, 0);
  for (const device::cuda::Drawn& d : pieces)
    for (int64_t i = 0; i < d.count; ++i)
      want[static_cast<size_t>(d.to + i)] =
          static_cast<float>(0.02 * stream.normal(static_cast<uint64_t>(d.first + i)));
  device::cuda::Lane lane;
  const device::cuda::Memory memory(kSize * 4);
  const auto drawn = [&]<class T>(tensor::Dtype dtype, T) {
    std::vector<T> out(kSize);
    lane.fill(memory.data(), 0, kSize * static_cast<int64_t>(sizeof(T)));
    device::cuda::fill_normal(lane, memory.data(), dtype, stream, 0.02, pieces);
    lane.copy_out(out.data(), memory.data(), kSize * static_cast<int64_t>(sizeof(T)));
    lane.synchronize();
    return out;
  };
  EXPECT_EQ(drawn(tensor::Dtype::F32, float{}), want);
  const auto high = drawn(tensor::Dtype::BF16, uint16_t{});
  const auto rest = drawn(tensor::Dtype::I16, int16_t{});
  const auto short_rest = drawn(tensor::Dtype::U8, int8_t{});
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(short_rest[i], tensor::short_rest(tensor::split(want[i]).rest)) << i;
    ASSERT_EQ(high[i], tensor::split(want[i]).high) << i;
    ASSERT_EQ(rest[i], tensor::split(want[i]).rest) << i;
  }
  EXPECT_ANY_THROW(device::cuda::fill_normal(lane, memory.data(), tensor::Dtype::F64, stream, 0.02, pieces));
}

TEST(InitializeCuda, EveryValueOfTheStateBeginsAsOnTheCpu) {
  PLEAT_NEEDS_GPU();
  const auto in = [](const char* dtype, const char* master, const char* space) {
    config::OptimizerConfig optimizer;
    optimizer.master = master, optimizer.state_space = space;
    return std::pair(std::string(dtype), optimizer);
  };
  for (const auto& [dtype, optimizer] :
       {in("float32", "float32", "device"), in("bfloat16", "float32", "device"),
        in("bfloat16", "float24", "device"), in("bfloat16", "float24", "host"),
        in("float32", "float32", "host")}) {
    config::Config c;
    c.optimizer = optimizer;
    c.model.vocab_size = 307;
    c.model.hidden_size = 64;
    c.model.num_layers = 2;
    c.model.num_heads = 4;
    c.model.qk_norm = true;
    c.moe.num_experts = 8;
    c.moe.ffn_hidden_size = 40;
    c.device.threads = 2;
    c.device.kind = "cuda";
    c.model.dtype = dtype;
    config::validate(c);
    runtime::ProgramChoice choice;
    choice.evaluate = false;
    runtime::Programs programs(config::resolve(c), choice);
    programs.initialize();
    device::Pool pool(1);
    const runtime::RankSetup alone = runtime::rank_setup(config::resolve(c), 1, 0);
    int64_t random = 0;
    for (const checkpoint::TensorRef& t : programs.tensors()) {
      std::vector<std::byte> want(static_cast<size_t>(t.bytes.size()));
      runtime::initialize_state(t.name, programs.table(), static_cast<uint64_t>(c.train.seed), alone.mesh,
                                alone.place, t.dtype, want, pool);
      EXPECT_TRUE(want == t.bytes.copy()) << t.name << " " << dtype;
      random += runtime::comes_from_seed(t.name, programs.table());
    }
    EXPECT_GT(random, 10);
  }
}

}  // namespace
}  // namespace pleat::train
