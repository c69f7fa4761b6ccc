// A state that comes tensor by tensor: the same checkpoint as from memory, nothing stored of zeros, and a save that was
// cut short goes on where it was.
#include "checkpoint/save_streamed.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/damage.h"
#include "checkpoint/directory.h"

namespace pleat::checkpoint {
namespace {

constexpr char kDirectory[] = "run";

// A test state whose second tensor is all zero, and a longer one beside it.
class Streamed {
 public:
  explicit Streamed(const std::string& source = "here") : state_(7, 3) {
    std::fill(state_.tensors[1].bytes.begin(), state_.tensors[1].bytes.end(), std::byte{0});
    state_.tensors.push_back({"zz.moment", tensor::Dtype::F32, {4, 100}, std::vector<std::byte>(1600)});
    const StateView view = state_.view();
    streamed_ = {view.step, {}, view.integers, view.reals, view.texts, source};
    for (const TestState::Tensor& t : state_.tensors) {
      const bool zero =
          std::all_of(t.bytes.begin(), t.bytes.end(), [](std::byte b) { return b == std::byte{0}; });
      streamed_.tensors.push_back({t.name, t.dtype, t.shape, zero});
      if (zero) num_zero_ += t.bytes.empty() ? 0 : 1;
    }
  }

  const TestState& state() const { return state_; }
  const StreamedState& streamed() const { return streamed_; }
  int num_zero() const { return num_zero_; }

  // In pieces of odd lengths.
  Pour pour() const {
    return [this](const std::string& name, int64_t begin, const Sink& sink) {
      for (const TestState::Tensor& t : state_.tensors)
        if (t.name == name)
          for (size_t at = static_cast<size_t>(begin); at < t.bytes.size(); at += 13)
            sink(std::span(t.bytes).subspan(at, std::min<size_t>(13, t.bytes.size() - at)));
    };
  }

  SaveResult save(base::Vfs& vfs, const StreamWatch& watch = {}) const {
    return save_streamed(vfs, kDirectory, streamed_, pour(), small_options(), watch);
  }

  // Empty when step-7 holds the state, bit for bit.
  void expect_there(base::Vfs& vfs) const {
    const Loaded loaded = open_step(vfs, kDirectory, 7);
    loaded.verify();
    EXPECT_EQ(loaded.state_sha256(), state_.digest());
    Targets targets(state_);
    restore(loaded, targets.list());
    EXPECT_TRUE(targets.equals(state_));
    EXPECT_EQ(vfs.list("run/step-7").size(), loaded.manifest().shards.size() + 1);
  }

 private:
  TestState state_;
  StreamedState streamed_;
  int num_zero_ = 0;
};

std::map<std::string, std::vector<std::byte>> files_of(base::SimVfs& vfs) {
  std::map<std::string, std::vector<std::byte>> out;
  for (const std::string& name : vfs.list("run/step-7")) out[name] = vfs.contents("run/step-7/" + name);
  return out;
}

// Stops after so many questions.
StreamWatch stop_after(int64_t count, int64_t* found = nullptr) {
  auto left = std::make_shared<int64_t>(count);
  StreamWatch watch;
  watch.stop = [left] { return (*left)-- == 0; };
  if (found) watch.progress = [found](const StreamProgress& p) { *found = std::max(*found, p.found); };
  return watch;
}

TEST(SaveStreamed, HoldsTheStateAndNoZeros) {
  const Streamed s;
  ASSERT_EQ(s.num_zero(), 2);
  base::SimVfs streamed, whole;
  const SaveResult result = s.save(streamed);
  s.expect_there(streamed);
  EXPECT_EQ(result.state_sha256, s.state().digest());
  const SaveResult other = save(whole, kDirectory, s.state().view(), small_options());
  EXPECT_EQ(other.state_sha256, result.state_sha256);
  const Loaded loaded = open_step(streamed, kDirectory, 7), full = open_step(whole, kDirectory, 7);
  EXPECT_EQ(loaded.manifest().version, kStreamedVersion);
  EXPECT_EQ(full.manifest().version, kFormatVersion);
  const int64_t zeros = static_cast<int64_t>(s.state().tensors[1].bytes.size()) + 1600;
  EXPECT_EQ(full.manifest().stream_length() - loaded.manifest().stream_length(), zeros);
  // A training run that saves the same state finds it there.
  EXPECT_TRUE(save(streamed, kDirectory, s.state().view(), small_options()).already_there);
  EXPECT_TRUE(s.save(streamed).already_there);
}

TEST(SaveStreamed, PartsAreReadAsFromOneThatStoresZeros) {
  const Streamed s;
  base::SimVfs streamed, whole;
  s.save(streamed);
  save(whole, kDirectory, s.state().view(), small_options());
  const Loaded a = open_step(streamed, kDirectory, 7), b = open_step(whole, kDirectory, 7);
  PartReader from_a(a), from_b(b);
  for (const TestState::Tensor& t : s.state().tensors) {
    const auto length = static_cast<int64_t>(t.bytes.size());
    const std::vector<Part> parts = {{0, 3, length / 3}, {length / 2, length / 3 + 5, length - length / 2}};
    std::vector<std::byte> x(t.bytes.size() + 9, std::byte{0xEE}), y = x;
    from_a.read(t.name, parts, x);
    from_b.read(t.name, parts, y);
    EXPECT_EQ(x, y) << t.name;
  }
  // What ranks verify together is everything.
  for (const int size : {1, 2, 3, 5}) {
    size_t end = 0;
    for (int rank = 0; rank < size; ++rank) {
      const TensorRange range = range_for(a.manifest(), rank, size);
      EXPECT_EQ(range.begin, end);
      end = range.end;
      a.verify(range);
    }
    EXPECT_EQ(end, a.manifest().tensors.size());
  }
}

TEST(SaveStreamed, GoesOnWhereItWasStopped) {
  const Streamed s;
  base::SimVfs in_one;
  s.save(in_one);
  const auto wanted = files_of(in_one);
  int64_t most_found = 0;
  for (int64_t at = 0;; ++at) {
    base::SimVfs vfs;
    try {
      s.save(vfs, stop_after(at));
      EXPECT_GT(at, 50);
      break;
    } catch (const base::Error& error) {
      EXPECT_EQ(error.code(), base::ExitCode::Retry);
    }
    EXPECT_EQ(vfs.num_open_files(), 0);
    EXPECT_TRUE(list_checkpoints(vfs, kDirectory).steps.empty());
    const int64_t missing = bytes_to_stream(vfs, kDirectory, s.streamed(), small_options());
    int64_t found = 0;
    s.save(vfs, stop_after(-1, &found));
    const int64_t all = open_step(vfs, kDirectory, 7).manifest().stream_length();
    EXPECT_EQ(found + missing, all);
    most_found = std::max(most_found, found);
    EXPECT_EQ(files_of(vfs), wanted);
  }
  EXPECT_GT(most_found, 0);
}

TEST(SaveStreamed, AnotherSourceBeginsAnew) {
  base::SimVfs vfs;
  const Streamed first("here"), second("there");
  EXPECT_THROW(first.save(vfs, stop_after(400)), base::Error);
  EXPECT_LT(bytes_to_stream(vfs, kDirectory, first.streamed(), small_options()),
            bytes_to_stream(vfs, kDirectory, second.streamed(), small_options()));
  int64_t found = 0;
  second.save(vfs, stop_after(-1, &found));
  EXPECT_EQ(found, 0);
  second.expect_there(vfs);
  EXPECT_TRUE(list_checkpoints(vfs, kDirectory).leftovers.empty());
  EXPECT_NE(thrown_by([&] { first.save(vfs); }).message.find("holds another state"), std::string::npos);
}

TEST(SaveStreamed, DamageToWhatWasFoundIsSeenBeforeTheCommit) {
  const Streamed s;
  base::SimVfs vfs;
  EXPECT_THROW(s.save(vfs, stop_after(400)), base::Error);
  const std::string shard = "run/step-7.tmp-0/shard-000000";
  std::vector<std::byte> bytes = vfs.contents(shard);
  bytes[bytes.size() / 2] ^= std::byte{1};
  vfs.set_contents(shard, bytes);
  EXPECT_EQ(thrown_by([&] { s.save(vfs); }).code, base::ExitCode::Storage);
  EXPECT_TRUE(vfs.list(kDirectory).empty());
  s.save(vfs);
  s.expect_there(vfs);
}

TEST(SaveStreamed, ABadSourceLeavesNothing) {
  const Streamed s;
  base::SimVfs vfs;
  const Pour bad = [&](const std::string& name, int64_t begin, const Sink& sink) {
    if (name == s.state().tensors.back().name || name > "layer") base::fail("'{}' is not finite", name);
    s.pour()(name, begin, sink);
  };
  EXPECT_EQ(thrown_by([&] { save_streamed(vfs, kDirectory, s.streamed(), bad, small_options()); }).code,
            base::ExitCode::BadInput);
  EXPECT_TRUE(vfs.list(kDirectory).empty());
}

// At whichever operation power is lost, whatever the disk then shows: no checkpoint or the whole one, and the same save
// makes it whole.
TEST(SaveStreamed, PowerLossAtEveryOperation) {
  const Streamed s;
  base::SimVfs dry;
  s.save(dry);
  const int64_t operations = dry.num_operations();
  std::mt19937_64 rng(5);
  for (int64_t at = 0; at < operations; ++at)
    for (const base::CrashMode mode : base::kCrashModes) {
      base::SimVfs vfs;
      vfs.lose_power_at(at);
      EXPECT_THROW(s.save(vfs), base::PowerLoss);
      vfs.crash(mode, rng);
      vfs.reset_faults();
      if (vfs.stat(kDirectory) && !list_checkpoints(vfs, kDirectory).steps.empty()) s.expect_there(vfs);
      s.save(vfs);
      s.expect_there(vfs);
      if (HasFailure()) FAIL() << "operation " << at << " of " << operations;
    }
}

TEST(SaveStreamed, AFailureAtEveryOperationCanBeGoneOnFrom) {
  const Streamed s;
  base::SimVfs dry;
  s.save(dry);
  for (int64_t at = 0; at < dry.num_operations(); ++at)
    for (const int error : {ENOSPC, EIO}) {
      base::SimVfs vfs;
      vfs.fail_at(at, error, base::Fault::Once);
      try {
        s.save(vfs);
      } catch (const base::Error& failed) {
        EXPECT_EQ(failed.code(), base::ExitCode::Storage);
        vfs.reset_faults();
        EXPECT_TRUE(!vfs.stat(kDirectory) || list_checkpoints(vfs, kDirectory).steps.empty()) << at;
        s.save(vfs);
      }
      vfs.reset_faults();
      s.expect_there(vfs);
      EXPECT_EQ(vfs.num_fsyncs_after_failure(), 0);
      EXPECT_EQ(vfs.num_open_files(), 0);
      if (HasFailure()) FAIL() << "operation " << at;
    }
}

// The same text with its digest, as a parser meets it.
void expect_refused(std::string text, const std::string& from, const std::string& to,
                    const std::string& part) {
  text = text.substr(0, text.rfind("sha256 "));
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const Thrown thrown = thrown_by([&] { parse_manifest_body(text, "M"); });
  EXPECT_EQ(thrown.code, base::ExitCode::BadInput);
  EXPECT_NE(thrown.message.find(part), std::string::npos) << thrown.message;
}

TEST(SaveStreamed, HostileManifestsAreRefused) {
  const Streamed s;
  base::SimVfs vfs;
  s.save(vfs);
  const std::string text = base::read_file(vfs, "run/step-7/MANIFEST", 1 << 20);
  EXPECT_NO_THROW(parse_manifest(text, "M"));
  expect_refused(text, "\"zero\": true", "\"zero\": false", "must not hold a boolean");
  expect_refused(text, "\"zero\": true", "\"zero\": 1", "must not hold a number");
  expect_refused(text, "\"zero\": true, ", "", "the tensors need 12721");
  expect_refused(text, "\"version\": 3", "\"version\": 2", "key 'mark' must not hold a string");
  const size_t mark = text.find("  \"mark\"");
  const std::string line = text.substr(mark, text.find('\n', mark) + 1 - mark);
  expect_refused(text, line, "", "the manifest has no key 'mark'");
  expect_refused(text, "\"mark\": \"", "\"mark\": \"0", "mark 'mark' does not hold 16");
  const std::string moment =
      "\"name\": \"zz.moment\", \"dtype\": \"f32\", \"shape\": [4, 100], \"length\": 1600, "
      "\"row_bytes\": 1600";
  expect_refused(text, moment,
                 "\"name\": \"zz.moment\", \"dtype\": \"f32\", \"shape\": [4, 101], \"length\": 1616, "
                 "\"row_bytes\": 1616",
                 "the state digest is not");
}

TEST(SaveStreamed, ZerosAreBoundedByWhatIsStored) {
  base::SimVfs vfs;
  const StreamedState state = {
      1, {{"a", tensor::Dtype::F32, {2}}, {"z", tensor::Dtype::F32, {int64_t{1} << 40}, true}}, {}, {}, {},
      ""};
  const Pour pour = [](const std::string&, int64_t, const Sink& sink) { sink(std::vector<std::byte>(8)); };
  EXPECT_NE(thrown_by([&] {
              save_streamed(vfs, kDirectory, state, pour, small_options());
            }).message.find("bytes of zeros beside 8 bytes that are stored"),
            std::string::npos);
}

}  // namespace
}  // namespace pleat::checkpoint
