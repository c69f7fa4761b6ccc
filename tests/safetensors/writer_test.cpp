// Writing: what comes back is what went in, the bytes are always the same, and nothing half-made ever has a
// final name.
#include "safetensors/writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "safetensors/model_folder.h"
#include "safetensors/safetensors_support.h"

namespace pleat::safetensors {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

struct Sample {
  TensorSpec spec;
  std::string data;
};

std::vector<Sample> random_samples(Random& random) {
  std::vector<Sample> samples(random.below(12) + 1);
  for (size_t i = 0; i < samples.size(); ++i) {
    TensorSpec& spec = samples[i].spec;
    spec.name = fmt::format("layer.{}\xc3\xa4\"\\/.{}", random.below(1000), i);
    spec.type = static_cast<ElementType>(random.below(12));
    for (uint64_t d = random.below(4); d > 0; --d)
      spec.shape.push_back(static_cast<int64_t>(random.below(6)));
    samples[i].data = random.text(static_cast<size_t>(num_bytes_of(spec, "")));
  }
  return samples;
}

std::vector<TensorSpec> specs_of(const std::vector<Sample>& samples) {
  std::vector<TensorSpec> specs;
  for (const Sample& sample : samples) specs.push_back(sample.spec);
  return specs;
}

template <class Source>
std::string read_tensor(const Source& source, const std::string& name) {
  std::string bytes(static_cast<size_t>(source.at(name).num_bytes()), '?');
  source.read(name, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(Writer, ExactBytes) {
  TemporaryFolder folder;
  const std::string path = folder.at("x.safetensors");
  Writer writer(path, {{"b", ElementType::U8, {3}},
                       {"a", ElementType::U8, {1}},
                       {"w", ElementType::F32, {1, 1}},
                       {"s", ElementType::I64, {}}});
  writer.append("a", bytes_of("a"));
  writer.append("s", bytes_of("ssssssss"));
  writer.append("b", bytes_of("bb"));
  writer.append("w", bytes_of("wwww"));
  EXPECT_FALSE(writer.is_complete());
  writer.append("b", bytes_of("B"));
  EXPECT_TRUE(writer.is_complete());
  writer.finish();
  std::string json =
      R"({"__metadata__":{"format":"pt"},"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("w":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]},"a":{"dtype":"U8","shape":[1],"data_offsets":[12,13]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[13,16]}})";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_file(path), file_image(json, "sssssssswwwwabbB"));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.safetensors"});
}

TEST(Writer, RandomFilesComeBackAndDoNotDependOnTheOrder) {
  TemporaryFolder folder;
  Random random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<Sample> samples = random_samples(random);
    std::string first;
    for (int again = 0; again < 2; ++again) {
      const std::string path = folder.at("x.safetensors");
      Writer writer(path, specs_of(samples), {{"format", "pt"}, {"note", "\x01\t\xe2\x82\xac\"\\"}});
      for (const Sample& sample : samples) {
        const size_t cut = sample.data.empty() ? 0 : random.below(sample.data.size());
        writer.append(sample.spec.name, bytes_of(sample.data).first(cut));
        writer.append(sample.spec.name, bytes_of(sample.data).subspan(cut));
      }
      writer.finish();
      const File file = File::open(path);
      ASSERT_EQ(file.tensors().size(), samples.size());
      ASSERT_EQ(file.header().metadata().at("format"), "pt");
      for (const Sample& sample : samples) {
        const TensorInfo& tensor = file.at(sample.spec.name);
        ASSERT_EQ(tensor.type, sample.spec.type);
        ASSERT_EQ(tensor.shape, sample.spec.shape);
        ASSERT_EQ(tensor.begin % size_of(tensor.type), 0);
        ASSERT_EQ(read_tensor(file, sample.spec.name), sample.data);
      }
      const std::string image = read_file(path);
      if (again == 0) first = image;
      ASSERT_EQ(image, first);
      std::reverse(samples.begin(), samples.end());
    }
  }
}

TEST(Writer, RefusesWhatCouldNotBeRead) {
  TemporaryFolder folder;
  const auto declare = [&](std::vector<TensorSpec> specs, Metadata metadata = {}) {
    Writer writer(folder.at("x.safetensors"), std::move(specs), metadata);
  };
  const TensorSpec a{"a", ElementType::F32, {2}};
  EXPECT_REFUSED(declare({a, a}), "key 'a' appears twice");
  EXPECT_REFUSED(declare({{"__metadata__", ElementType::F32, {2}}}),
                 "__metadata__ key 'shape' holds an array");
  EXPECT_REFUSED(declare({{std::string(1025, 'n'), ElementType::F32, {2}}}), "a name has 1025 bytes");
  EXPECT_REFUSED(declare({{"\xff", ElementType::F32, {2}}}), "not valid UTF-8");
  EXPECT_REFUSED(declare({{"a\n", ElementType::F32, {2}}}), "control character");
  EXPECT_REFUSED(declare({{"a", ElementType::F32, {-2}}}), "tensor 'a' has the negative size -2");
  EXPECT_REFUSED(declare({{"a", ElementType::F32, {INT64_MAX}}}), "overflows");
  EXPECT_REFUSED(
      declare({{"a", ElementType::F32, {int64_t{1} << 60}}, {"b", ElementType::F32, {int64_t{1} << 60}}}),
      "overflows");
  EXPECT_REFUSED(declare({a}, {{"k", "\xff"}}), "not valid UTF-8");
  EXPECT_TRUE(folder.names().empty());
}

TEST(Writer, RefusesWrongData) {
  TemporaryFolder folder;
  {
    Writer writer(folder.at("x.safetensors"), {{"a", ElementType::F32, {2}}, {"b", ElementType::U8, {0}}});
    EXPECT_REFUSED(writer.append("c", bytes_of("x")), "tensor 'c' was not declared");
    EXPECT_REFUSED(writer.append("b", bytes_of("x")),
                   "tensor 'b' has 0 bytes; 0 were written and 1 more came");
    writer.append("a", bytes_of("01234"));
    EXPECT_REFUSED(writer.append("a", bytes_of("5678")),
                   "tensor 'a' has 8 bytes; 5 were written and 4 more came");
    EXPECT_REFUSED(writer.finish(), "only 5 of the 8 bytes of tensor 'a' were written");
    ASSERT_EQ(folder.names().size(), 1u);
    EXPECT_TRUE(folder.names()[0].ends_with(".tmp"));
    struct stat status;
    ASSERT_EQ(::stat(folder.at(folder.names()[0]).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777u, 0600u);
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(Writer, ReplacesALinkInsteadOfFollowingIt) {
  TemporaryFolder folder;
  write_file(folder.at("victim"), "precious");
  std::filesystem::create_symlink("victim", folder.at("x.safetensors"));
  Writer(folder.at("x.safetensors"), {}).finish();
  EXPECT_EQ(read_file(folder.at("victim")), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(folder.at("x.safetensors")));
  EXPECT_TRUE(File::open(folder.at("x.safetensors")).tensors().empty());
  const mode_t mask = ::umask(0);
  ::umask(mask);
  struct stat status;
  ASSERT_EQ(::stat(folder.at("x.safetensors").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0666u & ~mask);
}

TEST(Writer, BadPlaces) {
  TemporaryFolder folder;
  EXPECT_REFUSED(Writer(folder.at("none/x.safetensors"), {}), "cannot open the folder: No such file");
  EXPECT_REFUSED(Writer(folder.path() + "/", {}), "not the name of a file");
  std::filesystem::create_directory(folder.at("x.safetensors"));
  EXPECT_REFUSED(Writer(folder.at("x.safetensors"), {}).finish(), "cannot rename the finished file to");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.safetensors"});
}

TEST(FolderWriter, SplitsAsTransformersDoes) {
  TemporaryFolder folder;
  const std::string path = folder.at("model");
  // In declared order: a+b, then big alone while c still joins d.
  FolderWriter writer(path,
                      {{"a", ElementType::U8, {4}},
                       {"b", ElementType::U8, {6}},
                       {"c", ElementType::U8, {3}},
                       {"big", ElementType::U8, {11}},
                       {"d", ElementType::U8, {7}},
                       {"e", ElementType::U8, {0}},
                       {"f", ElementType::U8, {1}}},
                      10);
  EXPECT_EQ(writer.num_shards(), 4);
  for (const auto& [name, size] : std::vector<std::pair<std::string, size_t>>{
           {"f", 1}, {"big", 11}, {"d", 7}, {"c", 3}, {"b", 6}, {"a", 4}})
    writer.append(name, bytes_of(std::string(size, name[0])));
  for (const auto& entry : std::filesystem::directory_iterator(path))
    EXPECT_EQ(entry.path().extension(), ".tmp");
  writer.finish();
  EXPECT_EQ(read_file(path + "/model.safetensors.index.json"), R"({
  "metadata": {
    "total_size": 32
  },
  "weight_map": {
    "a": "model-00001-of-00004.safetensors",
    "b": "model-00001-of-00004.safetensors",
    "big": "model-00002-of-00004.safetensors",
    "c": "model-00003-of-00004.safetensors",
    "d": "model-00003-of-00004.safetensors",
    "e": "model-00003-of-00004.safetensors",
    "f": "model-00004-of-00004.safetensors"
  }
}
)");
  const ModelFolder model = ModelFolder::open(path);
  EXPECT_TRUE(model.warnings().empty());
  EXPECT_EQ(model.total_bytes(), 32);
  EXPECT_EQ(read_tensor(model, "big"), std::string(11, 'b'));
  EXPECT_EQ(read_tensor(model, "d"), std::string(7, 'd'));
  EXPECT_EQ(read_tensor(model, "e"), "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 5);
}

TEST(FolderWriter, RandomModelsComeBack) {
  Random random(8);
  for (int round = 0; round < 12; ++round) {
    TemporaryFolder folder;
    const std::vector<Sample> samples = random_samples(random);
    FolderWriter writer(folder.path(), specs_of(samples), static_cast<int64_t>(1 + random.below(300)));
    for (const Sample& sample : samples) writer.append(sample.spec.name, bytes_of(sample.data));
    writer.finish();
    const ModelFolder model = ModelFolder::open(folder.path());
    ASSERT_TRUE(model.warnings().empty());
    ASSERT_EQ(model.names().size(), samples.size());
    ASSERT_EQ(static_cast<int64_t>(model.files().size()), writer.num_shards());
    for (const Sample& sample : samples) ASSERT_EQ(read_tensor(model, sample.spec.name), sample.data);
    ASSERT_EQ(folder.names().size(),
              writer.num_shards() == 1 ? 1 : static_cast<size_t>(writer.num_shards()) + 1);
  }
}

TEST(FolderWriter, Refusals) {
  TemporaryFolder folder;
  const TensorSpec a{"a", ElementType::U8, {4}}, b{"b", ElementType::U8, {4}};
  EXPECT_REFUSED(FolderWriter(folder.path(), {a, b}, 0),
                 "shards of at most 0 bytes; a positive number is needed");
  EXPECT_REFUSED(FolderWriter(folder.path(), {}, 10), "no tensor to write");
  EXPECT_REFUSED(FolderWriter(folder.path(), {a, b, a}, 4), "tensor 'a' was declared twice");
  EXPECT_REFUSED(FolderWriter(folder.path(), {a, {"\xff", ElementType::U8, {1}}}, 4), "not valid UTF-8");
  {
    FolderWriter writer(folder.path(), {a, b}, 4);
    writer.append("a", bytes_of("aaaa"));
    EXPECT_REFUSED(writer.append("a", bytes_of("a")),
                   "tensor 'a' has 4 bytes; 4 were written and 1 more came");
    EXPECT_REFUSED(writer.append("c", bytes_of("a")), "tensor 'c' was not declared");
    EXPECT_REFUSED(writer.finish(), "only 0 of the 4 bytes of tensor 'b' were written");
  }
  EXPECT_TRUE(folder.names().empty());
  write_file(folder.at("model-00007-of-00009.safetensors"), "old");
  EXPECT_REFUSED(FolderWriter(folder.path(), {a}, 10),
                 "holds weights already ('model-00007-of-00009.safetensors')");
}

}  // namespace
}  // namespace pleat::safetensors
