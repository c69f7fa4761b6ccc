// Whole training steps on the GPU: against the CPU, against themselves, and as a graph.
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "cuda/cuda_support.h"
#include "kernels/cuda/choices.h"
#include "runtime/programs.h"
#include "train/bench_step.h"
#include "train/matmul_choices.h"

namespace pleat::train {
namespace {

using kernels::testing::no_gpu;

config::Config small_model(const std::string& what) {
  config::Config c;
  c.model.vocab_size = 320;
  c.model.hidden_size = 128;
  c.model.num_layers = 2;
  c.model.num_heads = 4;
  c.model.num_kv_heads = 2;
  c.model.head_dim = 32;
  c.moe.num_experts = 8;
  c.moe.top_k = 2;
  c.moe.ffn_hidden_size = 64;
  c.moe.load_balancing = {"aux"};
  c.moe.aux_coef = {0.01};
  if (what == "qk_norm, shared experts") {
    c.model.qk_norm = true;
    c.moe.shared_ffn_hidden_size = 64;
    c.moe.z_coef = 1e-3;
  } else if (what == "latent attention, bias balancing") {
    c.model.attention = "mla";
    c.model.num_kv_heads = 0, c.model.head_dim = 0;
    c.model.q_lora_rank = 48, c.model.kv_lora_rank = 32;
    c.model.qk_nope_head_dim = 32, c.model.qk_rope_head_dim = 16, c.model.v_head_dim = 32;
    c.moe.score = "sigmoid";
    c.moe.load_balancing = {"bias"};
    c.moe.aux_coef = {};
    c.moe.scaling_factor = 2.5;
  } else if (what == "full norm, tied") {
    c.model.qk_norm = true;
    c.model.qk_norm_full = true;
    c.model.tie_embeddings = true;
  }
  c.train.seq_len = 64;
  c.train.micro_batch = 2;
  c.train.num_microbatches = 2;
  c.optimizer.lr = 1e-2;
  c.optimizer.schedule = "constant";
  c.device.threads = 2;
  return c;
}

config::Config on(config::Config c, const std::string& device, const std::string& dtype) {
  c.device.kind = device;
  c.model.dtype = dtype;
  config::validate(c);
  return config::resolve(c);
}

struct Trained {
  std::vector<double> losses;
  std::string state;  // digest
};

Trained train(const config::Config& c, int steps) {
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  runtime::Programs programs(c, choice);
  programs.initialize();
  Trained out;
  for (int step = 1; step <= steps; ++step) {
    write_random_batch(programs.train(), c,
                       1 + step % 4);  // a few batches again and again: something to learn
    programs.train().run();
    const double* loss = static_cast<const double*>(programs.train().data("loss"));
    out.losses.push_back(loss[0] / loss[1]);
  }
  base::Sha256 hash;
  for (const checkpoint::TensorRef& t : programs.tensors()) hash.update(t.bytes.copy());
  out.state = hash.hex();
  return out;
}

const char* const kModels[] = {"plain", "qk_norm, shared experts", "latent attention, bias balancing",
                               "full norm, tied"};

TEST(CudaStep, Float32AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const char* what : kModels) {
    SCOPED_TRACE(what);
    const Trained cpu = train(on(small_model(what), "cpu", "float32"), 8);
    const Trained gpu = train(on(small_model(what), "cuda", "float32"), 8);
    for (size_t i = 0; i < cpu.losses.size(); ++i)
      EXPECT_NEAR(gpu.losses[i], cpu.losses[i], (i == 0 ? 1e-5 : 2e-3) * cpu.losses[i]) << "step " << i;
  }
}

TEST(CudaStep, Bfloat16FollowsTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const char* what : kModels)
    for (const char* grad : {"float32", "bfloat16", "bfloat16 of experts"}) {
      SCOPED_TRACE(std::string(what) + ", gradients " + grad);
      // Slowly enough that rounding is not amplified: at a high rate two runs of any precision part.
      config::Config wide = small_model(what);
      wide.optimizer.lr = 1e-3;
      config::Config narrow = wide;
      if (std::string_view(grad) == "bfloat16 of experts")
        narrow.optimizer.groups["experts"].grad_dtype = "bfloat16";
      else
        narrow.optimizer.grad_dtype = grad;
      const Trained cpu = train(on(wide, "cpu", "float32"), 30);
      const Trained gpu = train(on(narrow, "cuda", "bfloat16"), 30);
      EXPECT_NEAR(gpu.losses[0], cpu.losses[0], 5e-3 * cpu.losses[0]);
      EXPECT_LT(gpu.losses.back(), 0.98 * gpu.losses.front()) << "it learns";
      double a = 0, b = 0;
      for (size_t i = 20; i < 30; ++i) a += cpu.losses[i], b += gpu.losses[i];
      EXPECT_NEAR(b, a, 0.02 * a);
    }
}

TEST(CudaStep, GraphAndStagesAndRepetitionGiveTheSameBits) {
  PLEAT_NEEDS_GPU();
  for (const char* what : kModels)
    for (const char* type : {"float32", "bfloat16"}) {
      SCOPED_TRACE(std::string(what) + " " + type);
      config::Config stages = small_model(what);
      stages.device.graph = false;
      const Trained graph = train(on(small_model(what), "cuda", type), 100);
      const Trained again = train(on(small_model(what), "cuda", type), 100);
      const Trained eager = train(on(stages, "cuda", type), 100);
      EXPECT_EQ(graph.losses, eager.losses);
      EXPECT_EQ(graph.losses, again.losses);
      EXPECT_EQ(graph.state, eager.state);
      EXPECT_EQ(graph.state, again.state);
    }
}

// A float32 step differs from the CPU's by last places, which turn a code here and there.
TEST(CudaStep, Fp8FollowsTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const char* what : kModels) {
    SCOPED_TRACE(what);
    config::Config c = small_model(what);
    c.optimizer.lr = 1e-3;
    c.precision.recipe = "fp8";
    const Trained cpu = train(on(c, "cpu", "float32"), 30);
    for (const char* type : {"float32", "bfloat16"}) {
      const Trained gpu = train(on(c, "cuda", type), 30);
      EXPECT_NEAR(gpu.losses[0], cpu.losses[0],
                  (std::string_view(type) == "float32" ? 1e-3 : 5e-3) * cpu.losses[0])
          << type;
      EXPECT_LT(gpu.losses.back(), 0.98 * gpu.losses.front()) << "it learns";
      double a = 0, b = 0;
      for (size_t i = 20; i < 30; ++i) a += cpu.losses[i], b += gpu.losses[i];
      EXPECT_NEAR(b, a, 0.02 * a) << type;
    }
  }
}

TEST(CudaStep, Fp8GraphAndStagesAndRepetitionGiveTheSameBits) {
  PLEAT_NEEDS_GPU();
  for (const char* what : kModels)
    for (const char* type : {"float32", "bfloat16"}) {
      SCOPED_TRACE(std::string(what) + " " + type);
      config::Config c = small_model(what);
      c.precision.recipe = "fp8";
      config::Config stages = c;
      stages.device.graph = false;
      const Trained graph = train(on(c, "cuda", type), 40), again = train(on(c, "cuda", type), 40),
                    eager = train(on(stages, "cuda", type), 40);
      EXPECT_EQ(graph.losses, eager.losses);
      EXPECT_EQ(graph.losses, again.losses);
      EXPECT_EQ(graph.state, eager.state);
      EXPECT_EQ(graph.state, again.state);
    }
}

TEST(CudaStep, WeightsThatMoveInTheBackwardHaveTheSameBits) {
  PLEAT_NEEDS_GPU();
  for (const char* what : kModels)
    for (const char* type : {"float32", "bfloat16"}) {
      SCOPED_TRACE(std::string(what) + " " + type);
      config::Config end = small_model(what);
      end.train.num_microbatches = 1;
      end.optimizer.clip_by = "tensor";
      config::Config early = end;
      early.optimizer.update_at = "backward";
      const Trained a = train(on(end, "cuda", type), 10), b = train(on(early, "cuda", type), 10);
      EXPECT_EQ(a.losses, b.losses);
      EXPECT_EQ(a.state, b.state);
    }
}

// Lanes are streams, which overlap by themselves whatever the order in which stages are put on them.
TEST(CudaStep, InOrderLeftStreamsSideBySide) {
  PLEAT_NEEDS_GPU();
  const config::Config c = on(small_model("qk_norm, shared experts"), "cuda", "bfloat16");
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  runtime::Programs programs(c, choice);
  programs.initialize();
  for (int step = 1; step <= 2; ++step) {
    write_random_batch(programs.train(), c, step);
    interpret::RunOptions options;
    options.in_order = true;
    options.timing = true;
    programs.train().run(options);
    const std::vector<interpret::Span>& spans = programs.train().timeline().spans;
    ASSERT_GT(spans.size(), 100u);
    // Clocks of a device tell half microseconds apart.
    for (size_t s = 1; s < spans.size(); ++s)
      ASSERT_GE(spans[s].start_ns, spans[s - 1].end_ns - 1000)
          << stage_name(programs.train().program().stages[s])
          << " began before the stage before it had ended";
  }
}

// What a resume does: a process that has measured nothing gets the choices of one that has.
TEST(CudaStep, KeptChoicesGiveTheSameBitsAndNothingIsMeasured) {
  PLEAT_NEEDS_GPU();
  for (const char* type : {"float32", "bfloat16"}) {
    SCOPED_TRACE(type);
    const config::Config c = on(small_model("qk_norm, shared experts"), "cuda", type);
    kernels::use_matmul_choices({});
    const int64_t before = kernels::num_matmuls_measured();
    const Trained first = train(c, 10);
    const std::string kept = to_json(current_choices());
    const std::vector<kernels::MatmulChoice> chosen = kernels::matmul_choices();
    ASSERT_FALSE(chosen.empty());
    EXPECT_EQ(kernels::num_matmuls_measured(), before + static_cast<int64_t>(chosen.size()));

    kernels::use_matmul_choices({});
    const TakenChoices taken = take(choices_from_json(kept, "kept"), matmul_machine(), "kept");
    ASSERT_EQ(taken.use, chosen);
    kernels::use_matmul_choices(taken.use);
    const int64_t measured = kernels::num_matmuls_measured();
    const Trained second = train(c, 10);
    EXPECT_EQ(kernels::num_matmuls_measured(), measured);
    EXPECT_EQ(kernels::matmul_choices(), chosen);
    EXPECT_EQ(second.losses, first.losses);
    EXPECT_EQ(second.state, first.state);
  }
}

TEST(CudaStep, AnAlgorithmTheLibraryDoesNotKnowIsRefused) {
  PLEAT_NEEDS_GPU();
  const config::Config c = on(small_model("plain"), "cuda", "bfloat16");
  kernels::use_matmul_choices({});
  train(c, 1);
  std::vector<kernels::MatmulChoice> tampered = kernels::matmul_choices();
  for (kernels::MatmulChoice& choice : tampered) choice.algorithm.fill(~uint64_t{0});
  kernels::use_matmul_choices(tampered);
  try {
    train(c, 1);
    ADD_FAILURE() << "accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("needed: one measured on this device with this library"),
              std::string::npos)
        << e.what();
  }
  kernels::use_matmul_choices({});
}

TEST(CudaStep, NonFiniteNumbersAreFoundAtTheirStage) {
  PLEAT_NEEDS_GPU();
  const config::Config c = on(small_model("plain"), "cuda", "bfloat16");
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  runtime::Programs programs(c, choice);
  programs.initialize();
  for (const checkpoint::Target& t : programs.targets())
    if (t.name == "layers.1.attn.qkv.weight") {
      const uint16_t infinity = 0x7F80;
      t.bytes.write(0, std::as_bytes(std::span(&infinity, 1)));
    }
  write_random_batch(programs.train(), c, 1);
  interpret::RunOptions look;
  look.find_non_finite = true;
  programs.train().run(look);
  ASSERT_TRUE(programs.train().non_finite());
  EXPECT_NE(programs.train().non_finite()->text.find("L1 qkv"), std::string::npos)
      << programs.train().non_finite()->text;
}

}  // namespace
}  // namespace pleat::train
