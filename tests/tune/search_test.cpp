// The search finds what trying everything finds; what it says fits, fits; more memory is never worse.
#include "tune/search.h"

#include <gtest/gtest.h>

#include <map>

#include "cost/machine_file.h"
#include "runtime/require_trainable.h"
#include "support/refusal.h"
#include "tune/advice.h"
#include "tune_support.h"

namespace pleat::tune {
namespace {

using testing::gpu_ground;
using testing::gpu_step;

// Choices of everything but the moments and the head, which would make too many to try all.
const std::vector<std::string> kFew = {"optimizer.moment_dtype=float32", "optimizer.state_space=device",
                                       "train.loss_chunk=512", "offload.modules=[]"};

std::vector<config::Config> configs_of(const Space& space, const std::vector<Candidate>& all) {
  std::vector<config::Config> out;
  for (const Candidate& c : all) out.push_back(configured(space, c));
  return out;
}

std::string words(const Space& space, const Answer& a) {
  std::string out;
  for (const Found& f : a.rows)
    out += fmt::format("{} {}\n", text_of(space, f.candidate), f.measured.step_ns);
  return out;
}

struct Tried {
  std::vector<Candidate> candidates;
  std::vector<Measured> measured;
};

TEST(Search, FindsWhatTryingEverythingFinds) {
  const Space all = make_space(gpu_step(kFew), 1, {});
  Tried tried{testing::every_candidate(all), {}};
  tried.measured = measure_all(configs_of(all, tried.candidates), 1, gpu_ground(1000));
  int64_t least = INT64_MAX, most = 0;
  for (const Measured& m : tried.measured) {
    if (!m.possible()) continue;
    least = std::min(least, m.device_bytes), most = std::max(most, m.device_bytes);
  }
  ASSERT_GT(most - least, int64_t{200} << 20);
  for (const int part : {-1, 2, 6}) {
    const int64_t limit = least + (most - least) * part / 10;
    for (const double worth : {0.0, 0.05}) {
      SCOPED_TRACE(fmt::format("{} bytes, rounding worth {}", limit, worth));
      double best = std::numeric_limits<double>::infinity();
      std::string best_text = "nothing";
      for (size_t i = 0; i < tried.candidates.size(); ++i) {
        const Measured& m = tried.measured[i];
        const double score = score_of(all, tried.candidates[i], static_cast<double>(m.step_ns), worth);
        if (!m.possible() || m.device_bytes > limit || score >= best) continue;
        best = score, best_text = text_of(all, tried.candidates[i]);
      }
      Space space = make_space(gpu_step(kFew), 1, {});
      const Answer answer =
          search(space, gpu_ground(static_cast<double>(limit) / (1 << 30)), {.worth = worth});
      EXPECT_TRUE(answer.complete);
      if (part < 0) {
        EXPECT_TRUE(answer.rows.empty());
        ASSERT_FALSE(answer.nearest.empty());
        EXPECT_EQ(answer.nearest[0].measured.device_bytes, least);
        continue;
      }
      ASSERT_FALSE(answer.rows.empty());
      EXPECT_LE(answer.rows[0].score, best * 1.0000001)
          << text_of(space, answer.rows[0].candidate) << " against " << best_text;
      // A small part of them had to be looked at.
      EXPECT_LT(answer.num_measured, static_cast<int64_t>(tried.candidates.size()) / 2);
    }
  }
}

TEST(Search, EveryRowFitsByThePlanOfItsWrittenConfiguration) {
  for (const double gib : {1.75, 1.55}) {
    const schedule::Ground ground = gpu_ground(gib);
    Space space = make_space(gpu_step(), 1, {});
    const Answer answer = search(space, ground, {});
    ASSERT_FALSE(answer.rows.empty()) << gib;
    for (const Found& row : answer.rows) {
      SCOPED_TRACE(text_of(space, row.candidate));
      const config::Config config =
          config::resolve(config::parse(config::to_toml(configured(space, row.candidate))));
      const schedule::RankPrograms ranks = schedule::build_ranks(config, 1);
      const interpret::Plan plan = interpret::plan(ranks.programs[0]);
      EXPECT_EQ(interpret::device_memory(plan).total(), row.measured.device_bytes);
      EXPECT_LE(static_cast<double>(row.measured.device_bytes), gib * (1 << 30));
      EXPECT_TRUE(row.measured.fit.fits());
    }
    for (size_t i = 1; i < answer.rows.size(); ++i) EXPECT_LE(answer.rows[i - 1].score, answer.rows[i].score);
  }
}

TEST(Search, MoreMemoryIsNeverWorse) {
  const config::Config step = gpu_step({"optimizer.state_space=device"});
  double score_before = std::numeric_limits<double>::infinity(), exact_before = score_before;
  for (const double gib : {1.5, 1.65, 1.9}) {
    SCOPED_TRACE(gib);
    Space space = make_space(step, 1, {}), exact = make_space(step, 1, {.exact = true, .free = {}});
    const Answer any = search(space, gpu_ground(gib), {}), same = search(exact, gpu_ground(gib), {});
    const double score = any.rows.empty() ? std::numeric_limits<double>::infinity() : any.rows[0].score;
    EXPECT_LE(score, score_before);
    score_before = score;
    const double time = same.rows.empty() ? std::numeric_limits<double>::infinity()
                                          : static_cast<double>(same.rows[0].measured.step_ns);
    EXPECT_LE(time, exact_before);
    exact_before = time;
  }
  EXPECT_LT(exact_before, std::numeric_limits<double>::infinity());
}

TEST(Search, ExactRowsChangeNoBits) {
  Space space = make_space(gpu_step(), 1, {.exact = true, .free = {}});
  const Answer answer = search(space, gpu_ground(100), {});
  ASSERT_FALSE(answer.rows.empty());
  EXPECT_FALSE(space.left_out.empty());
  for (const Found& row : answer.rows) {
    const config::Config config = configured(space, row.candidate);
    for (const config::Change& change : config::changes(space.base, config))
      EXPECT_TRUE(change.key->path.starts_with("recompute.")) << change.text();
  }
}

TEST(Search, TheAnswerIsTheSameEveryTime) {
  Space one = make_space(gpu_step(), 1, {}), two = make_space(gpu_step(), 1, {});
  EXPECT_EQ(words(one, search(one, gpu_ground(1.6), {})), words(two, search(two, gpu_ground(1.6), {})));
}

TEST(Search, RoundsOnlyWhereItIsWorthIt) {
  Space space = make_space(gpu_step(), 1, {});
  const Answer roomy = search(space, gpu_ground(100), {.worth = 10});
  ASSERT_FALSE(roomy.rows.empty());
  for (size_t f = 0; f < space.families.size(); ++f)
    EXPECT_NE(space.families[f].choices[roomy.rows[0].candidate.choice[f]].numbers, Numbers::Rounded);
  // Of every question: the best of those that round least is among the rows. (Not where it takes ten times as long, as with
  // states on the host.)
  const std::vector<std::string> here = {"optimizer.state_space=device"};
  Space near = make_space(gpu_step(here), 1, {});
  const Answer tight = search(near, gpu_ground(1.7), {.worth = 0, .rows = 1});
  ASSERT_FALSE(tight.rows.empty());
  Space exact = make_space(gpu_step(here), 1, {.exact = true, .free = {}});
  const bool exact_fits = !search(exact, gpu_ground(1.7), {}).rows.empty();
  bool without = false;
  for (const Found& row : tight.rows)
    without |=
        row.score == static_cast<double>(row.measured.step_ns) && score_of(near, row.candidate, 1, 1) == 1;
  EXPECT_TRUE(without || !exact_fits);
}

// The sentence with which `train` refuses a candidate; "" where it takes it.
std::string refusal_of(const Space& space, const Candidate& c) {
  return testing::message_of([&] { runtime::require_trainable(configured(space, c)); });
}

// States in few bits and in the host's memory are what makes a step fit where the memory is small.
TEST(Search, StatesOfEveryKindAreOrdinaryChoices) {
  for (const double gib : {1.6, 1.3}) {
    SCOPED_TRACE(gib);
    const schedule::Ground ground = gpu_ground(gib);
    Space space = make_space(gpu_step(), 1, {});
    const Answer answer = search(space, ground, {});
    ASSERT_FALSE(answer.rows.empty());
    EXPECT_TRUE(answer.not_yet.rows.empty());
    const config::Config best = configured(space, answer.rows[0].candidate);
    EXPECT_TRUE(gib > 1.5 || best.optimizer.state_space == "host" ||
                best.optimizer.moment_dtype == "block8" || best.optimizer.moment1_dtype == "block8" ||
                best.optimizer.master != "float32");
    for (const std::vector<Found>* trained : {&answer.rows, &answer.nearest})
      for (const Found& f : *trained) EXPECT_EQ(refusal_of(space, f.candidate), "");
    if (answer.unlimited) {
      EXPECT_EQ(refusal_of(space, answer.unlimited->candidate), "");
    }
  }
}

TEST(Search, AQuestionThatTrainRefusesAsItIsHasNoAnswer) {
  Space space = make_space(gpu_step({"precision.recipe=mxfp8"}), 1, {});
  const Answer answer = search(space, gpu_ground(100), {});
  EXPECT_TRUE(answer.rows.empty());
  EXPECT_TRUE(answer.nearest.empty());
  EXPECT_NE(answer.plain.measured.untrained.find("precision.recipe"), std::string::npos);
  ASSERT_FALSE(answer.not_yet.rows.empty());
  for (const Found& f : answer.not_yet.rows) EXPECT_EQ(f.measured.untrained, refusal_of(space, f.candidate));
}

TEST(Search, WhatTrainsOnACpuIsAnOrdinaryChoiceThere) {
  const config::Config step = gpu_step({"device.kind=cpu", "model.dtype=float32", "recompute.modules=[]",
                                        "train.micro_batch=1", "train.loss_chunk=0"});
  cost::Machine machine = cost::find_machine("cpu");
  Space space = make_space(step, 1, {});
  // With both moments in eight bits it fits, with more it does not.
  std::map<std::string, int64_t> bytes;
  for (size_t i = 0; i < space.families[0].choices.size(); ++i) {
    const Candidate c{{i}, {0}};
    bytes[text_of(space, c)] =
        measure(configured(space, c), 1, schedule::make_ground(machine)).fit.host_bytes;
  }
  ASSERT_LT(bytes.at("moments 8 bit"), bytes.at("moments bf16"));
  machine.node.host_memory_gib = static_cast<double>(bytes.at("moments 8 bit") + 1) / (1 << 30);
  const Answer answer = search(space, schedule::make_ground(machine), {});
  ASSERT_EQ(answer.rows.size(), 1u);
  EXPECT_EQ(text_of(space, answer.rows[0].candidate), "moments 8 bit");
  EXPECT_TRUE(answer.rows[0].measured.trains());
  EXPECT_TRUE(answer.not_yet.rows.empty());
}

TEST(Search, AChoiceThatNeedsAnotherIsFoundBesideIt) {
  Space space = make_space(gpu_step({"optimizer.clip_by=tensor"}), 1, {});
  const schedule::Ground ground = gpu_ground(1.35);
  const Estimate estimate(space, ground);
  const auto chosen = [&](const std::vector<std::string>& names) {
    Candidate c = without_any(space);
    for (size_t f = 0; f < space.families.size(); ++f)
      for (size_t i = 0; i < space.families[f].choices.size(); ++i)
        if (std::find(names.begin(), names.end(), space.families[f].choices[i].name) != names.end())
          c.choice[f] = i;
    EXPECT_EQ(text_of(space, c), fmt::format("{}", fmt::join(names, "; ")));
    return c;
  };
  // One microbatch makes the update inside the backward possible, and nothing else does.
  const Candidate both = chosen({"1 x mb 8", "update at once"});
  EXPECT_FALSE(estimate.is_possible(chosen({"update at once"})));
  EXPECT_FALSE(estimate.is_possible(chosen({"2 x mb 4", "update at once"})));
  EXPECT_FALSE(estimate.is_possible(chosen({"update at once", "moments bf16"})));
  EXPECT_TRUE(estimate.is_possible(both));
  EXPECT_TRUE(estimate.is_possible(chosen({"1 x mb 8", "update at once", "moments bf16"})));
  EXPECT_TRUE(estimate.is_possible(chosen({"2 x mb 4"})));
  const Measured measured = measure(configured(space, both), 1, ground);
  EXPECT_EQ(estimate.of(both).device, figures_of(measured).device);
  EXPECT_EQ(estimate.of(both).step_ns, figures_of(measured).step_ns);
  // What is freed at once is not freed once more in fewer bits.
  const Candidate narrow = chosen({"1 x mb 8", "grads bf16", "update at once"});
  EXPECT_EQ(estimate.of(narrow).device, figures_of(measure(configured(space, narrow), 1, ground)).device);
  // It frees the gradients one by one, and so it is what a small memory takes.
  EXPECT_LT(estimate.of(both).device, estimate.of(chosen({"1 x mb 8"})).device);
  const Answer answer = search(space, ground, {});
  EXPECT_TRUE(std::any_of(answer.rows.begin(), answer.rows.end(), [&](const Found& f) {
    return text_of(space, f.candidate).starts_with("1 x mb 8") &&
           text_of(space, f.candidate).find("update at once") != std::string::npos;
  })) << words(space, answer);
}

TEST(Search, WhatLiesOnADeviceTakesNothingOfItsHost) {
  Space space = make_space(gpu_step(), 1, {});
  const Measured plain = measure(space.base, 1, gpu_ground(100));
  // Weights and states of 600 MiB and more; two buffers on the host, whatever is pinned beside them.
  EXPECT_GT(plain.device_bytes, int64_t{600} << 20);
  EXPECT_EQ(plain.fit.staging_bytes, int64_t{128} << 20);
  EXPECT_GE(plain.fit.host_bytes, plain.fit.staging_bytes);
  const double gib = static_cast<double>(plain.fit.host_bytes) / (1 << 30);
  EXPECT_TRUE(measure(space.base, 1, gpu_ground(100, gib * 1.1)).fits());
  const Measured small = measure(space.base, 1, gpu_ground(100, gib * 0.9));
  EXPECT_FALSE(small.fits());
  EXPECT_NE(small.fit.text.find("128 MiB staging"), std::string::npos) << small.fit.text;
  // The rows of an answer fit their hosts with it.
  const Answer answer = search(space, gpu_ground(100, gib * 1.1), {});
  ASSERT_FALSE(answer.rows.empty());
  for (const Found& f : answer.rows) EXPECT_LE(f.measured.fit.host_bytes, f.measured.fit.host_limit);
}

TEST(Search, StopsAtItsTimeLimitAndSaysSo) {
  Space space = make_space(gpu_step(), 1, {});
  const Answer answer = search(space, gpu_ground(1.4), {.deadline = std::chrono::steady_clock::now()});
  EXPECT_FALSE(answer.complete);
}

TEST(Search, WhatNoBuildTakesIsAnErrorAndNoEmptyTable) {
  Space space = make_space(gpu_step(), 1, {});
  space.base.train.num_microbatches = 0;
  EXPECT_NE(testing::message_of([&] { search(space, gpu_ground(100), {}); }).find("train.num_microbatches"),
            std::string::npos);
}

TEST(Search, SeveralRanksAndPipelines) {
  const std::vector<std::string> sets = {"parallel.pp=2", "parallel.ep=2", "recompute.modules="};
  for (const double gib : {3.0, 20.0}) {
    Space space = make_space(gpu_step(sets), 4, {});
    const Answer answer = search(space, gpu_ground(gib), {});
    for (const Found& row : answer.rows) {
      EXPECT_TRUE(row.measured.fit.fits());
      const Measured again = measure(configured(space, row.candidate), 4, gpu_ground(gib));
      EXPECT_EQ(again.device_bytes, row.measured.device_bytes);
    }
    EXPECT_TRUE(gib < 20.0 || !answer.rows.empty());
  }
}

TEST(Advice, WhatIsSaidToFitDoes) {
  Space space = make_space(gpu_step(), 1, {});
  const schedule::Ground ground = gpu_ground(0.9);
  const Answer answer = search(space, ground, {});
  ASSERT_TRUE(answer.rows.empty());
  const std::vector<std::string> advice = what_would_fit(space, answer.nearest, ground);
  std::string all;
  for (const std::string& a : advice) all += a + "\n";
  EXPECT_NE(all.find("with model.num_layers = "), std::string::npos) << all;
  EXPECT_NE(all.find("of device memory it fits"), std::string::npos) << all;
  // As many layers as it says, and not one more.
  const size_t at = all.find("num_layers = ") + 13;
  const int64_t layers = std::stoll(all.substr(at));
  const Space fewer = make_space(gpu_step({fmt::format("model.num_layers={}", layers)}), 1, {});
  EXPECT_TRUE([&] {
    Space s = fewer;
    return !search(s, ground, {}).rows.empty();
  }());
  // With the memory it says.
  Space again = make_space(gpu_step(), 1, {});
  EXPECT_FALSE(
      search(again, gpu_ground(static_cast<double>(answer.nearest[0].measured.device_bytes) / (1 << 30)), {})
          .rows.empty());
  EXPECT_TRUE(what_would_fit(space, {}, ground).empty());
}

TEST(Advice, ATokenBudgetIsNamedAndNotTaken) {
  const Space space = make_space(gpu_step({"parallel.ep=4"}), 4, {});
  const Found plain{without_any(space), measure(space.base, 4, gpu_ground(100)), 0};
  EXPECT_NE(token_budget_advice(space, plain, gpu_ground(100)).find("moe.token_budget = 2"),
            std::string::npos);
  const Space alone = make_space(gpu_step(), 1, {});
  EXPECT_EQ(token_budget_advice(alone, {without_any(alone), measure(alone.base, 1, gpu_ground(100)), 0},
                                gpu_ground(100)),
            "");
}

}  // namespace
}  // namespace pleat::tune
