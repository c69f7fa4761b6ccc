// Model folders: one table over all shards, and every way an index can lie or lead out of its folder.
#include "safetensors/model_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/error.h"
#include "safetensors/safetensors_support.h"
#include "safetensors/shard_index.h"

namespace pleat::safetensors {
namespace {

std::string one_tensor(const std::string& name, const std::string& data) {
  return file_image(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})", name,
                                data.size(), data.size()),
                    data);
}

std::string index_of(const std::string& map) { return "{\"weight_map\":{" + map + "}}"; }

ShardIndex parse_index(const std::string& json) { return parse_shard_index(json, "index"); }

class Sharded : public ::testing::Test {
 protected:
  Sharded() {
    write_file(folder.at("s1.safetensors"), one_tensor("a", "aaa"));
    write_file(folder.at("s2.safetensors"), one_tensor("b", "bbbb"));
  }
  void write_index(const std::string& json) { write_file(folder.at(kIndexFileName), json); }
  ModelFolder open() { return ModelFolder::open(folder.path()); }

  TemporaryFolder folder;
  const std::string kMap = R"("b":"s2.safetensors","a":"s1.safetensors")";
};

TEST_F(Sharded, OneTableOverAllShards) {
  write_index(R"({"metadata":{"total_size":7,"by":{"x":[1.5,null,{"y":true}]}},"weight_map":{)" + kMap +
              "},\"note\":1}");
  const ModelFolder opened = open();
  const ModelFolder moved = [&] {
    ModelFolder m = ModelFolder::open(folder.path());
    return m;
  }();
  for (const ModelFolder* model : {&opened, &moved}) {
    EXPECT_EQ(model->names(), (std::vector<std::string_view>{"a", "b"}));
    EXPECT_EQ(model->total_bytes(), 7);
    EXPECT_TRUE(model->warnings().empty());
    EXPECT_EQ(model->files().size(), 2u);
    std::string bytes(4, '?');
    model->read("b", std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, "bbbb");
    model->read("a", 1, std::as_writable_bytes(std::span(bytes)).first(2));
    EXPECT_EQ(bytes, "aabb");
    EXPECT_EQ(model->find("c"), nullptr);
    EXPECT_REFUSED(model->at("c"), "there is no tensor 'c'");
  }
}

TEST_F(Sharded, SingleFileWinsAsInTransformers) {
  write_index(index_of(kMap));
  write_file(folder.at(kSingleFileName), one_tensor("only", "x"));
  const ModelFolder model = open();
  EXPECT_EQ(model.names(), std::vector<std::string_view>{"only"});
  ASSERT_EQ(model.warnings().size(), 1u);
  EXPECT_NE(model.warnings()[0].find("holds both model.safetensors and"), std::string::npos);
}

TEST_F(Sharded, TensorsAndIndexMustAgree) {
  write_index(index_of(kMap + R"(,"c":"s1.safetensors")"));
  EXPECT_REFUSED(open(), "tensor 'c' is not in 's1.safetensors', where the index places it");
  write_index(index_of(R"("a":"s2.safetensors","b":"s2.safetensors")"));
  EXPECT_REFUSED(open(), "tensor 'a' is not in 's2.safetensors'");
  write_index(index_of(R"("a":"s2.safetensors","b":"s1.safetensors")"));
  EXPECT_REFUSED(open(), "s1.safetensors: holds tensor 'a', which the index places in 's2.safetensors'");
  // One name in two shards.
  write_file(folder.at("s3.safetensors"),
             file_image(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                        "xy"));
  write_index(index_of(kMap + R"(,"c":"s3.safetensors")"));
  EXPECT_REFUSED(open(), "s3.safetensors: holds tensor 'a', which the index places in 's1.safetensors'");
  write_index(index_of(kMap + R"(,"c":"s4.safetensors")"));
  EXPECT_REFUSED(open(), "s4.safetensors: cannot open: No such file");
  write_file(folder.at("s4.safetensors"), "short");
  EXPECT_REFUSED(open(), "s4.safetensors: 5 bytes are too few");
}

TEST_F(Sharded, UnlistedTensorsAndWrongSumsAreWarnings) {
  write_index(R"({"metadata":{"total_size":8},"weight_map":{"a":"s1.safetensors","c":"s3.safetensors"}})");
  write_file(folder.at("s3.safetensors"),
             file_image(R"({"d":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                        "xy"));
  const ModelFolder model = open();
  EXPECT_EQ(model.names(), (std::vector<std::string_view>{"a", "c"}));
  EXPECT_EQ(model.find("d"), nullptr);
  ASSERT_EQ(model.warnings().size(), 2u);
  EXPECT_NE(model.warnings()[0].find("1 tensor(s) that the index does not list are left out, the first: 'd'"),
            std::string::npos);
  EXPECT_NE(model.warnings()[1].find("total_size says 8 bytes, but the tensors have 4"), std::string::npos);
}

TEST_F(Sharded, ShardsThatAreNotPlainFiles) {
  write_index(index_of(kMap + R"(,"c":"s3.safetensors")"));
  std::filesystem::create_symlink("/etc/passwd", folder.at("s3.safetensors"));
  EXPECT_REFUSED(open(), "s3.safetensors: is a symbolic link");
  std::filesystem::remove(folder.at("s3.safetensors"));
  std::filesystem::create_symlink("s1.safetensors", folder.at("s3.safetensors"));
  EXPECT_REFUSED(open(), "s3.safetensors: is a symbolic link");
  std::filesystem::remove(folder.at("s3.safetensors"));
  ASSERT_EQ(::mkfifo(folder.at("s3.safetensors").c_str(), 0600), 0);
  EXPECT_REFUSED(open(), "s3.safetensors: not a regular file");
  std::filesystem::remove(folder.at(kIndexFileName));
  std::filesystem::create_symlink("s1.safetensors", folder.at(kIndexFileName));
  EXPECT_REFUSED(open(), "index.json: is a symbolic link");
}

TEST(ModelFolder, WithoutSafetensors) {
  TemporaryFolder folder;
  EXPECT_REFUSED(ModelFolder::open(folder.path()),
                 "holds neither model.safetensors nor model.safetensors.index.json");
  write_file(folder.at("config.json"), "{}");
  write_file(folder.at("pytorch_model.bin"), "");
  EXPECT_REFUSED(ModelFolder::open(folder.path()), "'pytorch_model.bin' is a Python pickle");
  EXPECT_REFUSED(ModelFolder::open(folder.at("none")), "cannot open the folder: No such file");
  EXPECT_REFUSED(ModelFolder::open(folder.at("config.json")), "cannot open the folder: Not a directory");
  write_file(folder.at(kSingleFileName), "junk");
  EXPECT_REFUSED(ModelFolder::open(folder.path()),
                 "model.safetensors: 4 bytes are too few");  // no way back to the pickle
}

TEST(ShardIndexAttack, PathsThatLeaveTheFolder) {
  for (const char* name :
       {"../s.safetensors", "/etc/s.safetensors", "a/s.safetensors", "..\\\\s.safetensors",
        "%2e%2e%2fs.safetensors", "s.safetensors ", "s\\u0000.safetensors", "s\\n.safetensors",
        "~s.safetensors", "$HOME.safetensors", "\xc3\xa4.safetensors", "C:s.safetensors"})
    EXPECT_REFUSED(parse_index(index_of(fmt::format(R"("a":"{}")", name))),
                   "must be one path component of the letters");
  EXPECT_REFUSED(parse_index(index_of(R"("a":"..")")), "'..' is not the name of a file");
  EXPECT_REFUSED(parse_index(index_of(R"("a":".")")), "'.' is not the name of a file");
  EXPECT_REFUSED(parse_index(index_of(R"("a":"")")), "'' is not the name of a file");
  EXPECT_REFUSED(parse_index(index_of("\"a\":\"" + std::string(245, 's') + ".safetensors\"")),
                 "a file name of 257 bytes; at most 255");
  EXPECT_NO_THROW(parse_index(index_of("\"a\":\"" + std::string(243, 's') + ".safetensors\"")));
  EXPECT_REFUSED(parse_index(index_of(R"("a":"pytorch_model-00001-of-00002.bin")")), "is a Python pickle");
  EXPECT_REFUSED(parse_index(index_of(R"("a":"passwd")")), "file 'passwd' is not a .safetensors file");
}

TEST(ShardIndexAttack, Schema) {
  EXPECT_REFUSED(parse_index("[]"), "does not start with '{'");
  EXPECT_REFUSED(parse_index("{}"), "there is no 'weight_map'");
  EXPECT_REFUSED(parse_index(R"({"x":{"weight_map":{"a":"s.safetensors"}}})"), "there is no 'weight_map'");
  EXPECT_REFUSED(parse_index(index_of("")), "weight_map lists no tensor");
  EXPECT_REFUSED(parse_index(R"({"weight_map":[]})"), "'weight_map' is an array; an object is needed");
  EXPECT_REFUSED(parse_index(R"({"weight_map":"x"})"), "'weight_map' is a string; an object is needed");
  EXPECT_REFUSED(parse_index(R"({"metadata":null})"), "'metadata' is null; an object is needed");
  EXPECT_REFUSED(parse_index(index_of(R"("a":1)")),
                 "weight_map gives a number for tensor 'a'; a file name is needed");
  EXPECT_REFUSED(parse_index(index_of(R"("a":{"b":"c"})")), "weight_map gives an object for tensor 'a'");
  EXPECT_REFUSED(parse_index(index_of(R"("a":["s.safetensors"])")),
                 "weight_map gives an array for tensor 'a'");
  EXPECT_REFUSED(parse_index(index_of(R"("a":null)")), "weight_map gives null for tensor 'a'");
  EXPECT_REFUSED(parse_index(index_of(R"("a":"s.safetensors","a":"t.safetensors")")),
                 "key 'a' appears twice");
  EXPECT_REFUSED(parse_index(R"({"weight_map":{"a":"s.safetensors"},"weight_map":{}})"),
                 "key 'weight_map' appears twice");
  EXPECT_REFUSED(parse_index(R"({"metadata":{"n":{"d":1,"d":1}}})"), "key 'd' appears twice");
  for (const char* size : {"1.5", "-1", "1e3", "\"7\"", "{}", "[]", "null", "9007199254740993"})
    EXPECT_REFUSED(parse_index(fmt::format(R"({{"metadata":{{"total_size":{}}}}})", size)), "total_size is ");
  EXPECT_REFUSED(parse_index(index_of("\"" + std::string(1025, 'n') + "\":\"s.safetensors\"")),
                 "a name has 1025 bytes");
  std::string deep = "{\"metadata\":{\"x\":";
  EXPECT_REFUSED(parse_index(deep + std::string(31, '[')), "nested deeper than 32 levels");
  EXPECT_NO_THROW(parse_index(deep + std::string(30, '[') + std::string(30, ']') +
                              "},\"weight_map\":{\"a\":\"s.safetensors\"}}"));
  EXPECT_REFUSED(parse_index(index_of("\"\xff\":\"s.safetensors\"")), "not valid UTF-8");
}

TEST(ShardIndexDamage, RandomEditsAreRefusedOrConsistent) {
  const std::string valid =
      R"({"metadata":{"total_size":7},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})";
  for (size_t length = 0; length < valid.size(); ++length)
    EXPECT_THROW(parse_index(valid.substr(0, length)), base::Error);
  Random random(5);
  int num_accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = valid;
    for (uint64_t edit = 0; edit <= random.below(3); ++edit) {
      const size_t at = random.below(damaged.size());
      const uint64_t kind = random.below(3);
      if (kind == 0) damaged[at] = static_cast<char>(random.below(256));
      if (kind == 1) damaged.erase(at, 1);
      if (kind == 2) damaged.insert(at, 1, "./\\\"{}[],:0"[random.below(11)]);
    }
    try {
      const ShardIndex index = parse_index(damaged);
      for (const std::string& shard : index.shards) ASSERT_NO_THROW(check_shard_name(shard, ""));
      for (const ShardIndex::Entry& entry : index.entries) ASSERT_EQ(index.find(entry.name), &entry);
      ++num_accepted;
    } catch (const base::Error&) {
    }
  }
  EXPECT_GT(num_accepted, 100);
}

}  // namespace
}  // namespace pleat::safetensors
