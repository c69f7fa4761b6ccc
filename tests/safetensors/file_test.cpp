// Opening and reading one file: what is read is what was written, and nothing but a plain file is opened.
#include "safetensors/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "safetensors/safetensors_support.h"

namespace pleat::safetensors {
namespace {

const std::string kJson =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";

std::string read_tensor(const File& file, const std::string& name) {
  std::string bytes(static_cast<size_t>(file.at(name).num_bytes()), '?');
  file.read(name, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(File, ReadsWholeTensorsAndRanges) {
  TemporaryFolder folder;
  write_file(folder.at("x.safetensors"), file_image(kJson, "01234567abc"));
  const File file = File::open(folder.at("x.safetensors"));
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(read_tensor(file, "a"), "01234567");
  EXPECT_EQ(read_tensor(file, "b"), "abc");
  const TensorInfo& a = file.at("a");
  for (int64_t first = 0; first <= 8; ++first)
    for (int64_t count = 0; first + count <= 8; ++count) {
      std::string bytes(static_cast<size_t>(count), '?');
      file.read(a, first, std::as_writable_bytes(std::span(bytes)));
      EXPECT_EQ(bytes,
                std::string("01234567").substr(static_cast<size_t>(first), static_cast<size_t>(count)));
    }
}

TEST(File, RefusesWrongReads) {
  TemporaryFolder folder;
  write_file(folder.at("x.safetensors"), file_image(kJson, "01234567abc"));
  const File file = File::open(folder.at("x.safetensors"));
  std::string bytes(9, '?');
  const auto room = [&](size_t count) { return std::as_writable_bytes(std::span(bytes)).first(count); };
  EXPECT_REFUSED(file.read("a", room(7)), "tensor 'a' has 8 bytes, but room for 7 was given");
  EXPECT_REFUSED(file.read("a", room(9)), "tensor 'a' has 8 bytes, but room for 9 was given");
  EXPECT_REFUSED(file.read("c", room(1)), "there is no tensor 'c'");
  EXPECT_REFUSED(file.read(file.at("a"), 1, room(8)),
                 "8 bytes from byte 1 on reach beyond the 8 bytes of tensor 'a'");
  EXPECT_REFUSED(file.read(file.at("a"), 9, room(0)), "0 bytes from byte 9 on reach beyond");
  EXPECT_REFUSED(file.read(file.at("a"), -1, room(1)), "1 bytes from byte -1 on reach beyond");
  EXPECT_EQ(bytes, std::string(9, '?'));
}

TEST(File, EveryTruncationIsRefused) {
  TemporaryFolder folder;
  const std::string image = file_image(kJson, "01234567abc"), path = folder.at("x.safetensors");
  for (size_t length = 0; length < image.size(); ++length) {
    write_file(path, image.substr(0, length));
    EXPECT_THROW(File::open(path), base::Error) << length;
  }
}

TEST(File, AFileCutWhileOpenIsAnError) {
  TemporaryFolder folder;
  const std::string image = file_image(kJson, "01234567abc"), path = folder.at("x.safetensors");
  write_file(path, image);
  const File file = File::open(path);
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(image.size() - 2)), 0);
  EXPECT_EQ(read_tensor(file, "a"), "01234567");
  try {
    read_tensor(file, "b");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ExitCode::Storage);
    EXPECT_NE(std::string(error.what()).find("it was cut after it was opened"), std::string::npos);
  }
}

TEST(File, ALengthInTheFileAllocatesNothing) {
  // 100 MB of header announced in a sparse file would be a real allocation; a short file must not be one.
  TemporaryFolder folder;
  write_file(folder.at("x.safetensors"), length_bytes(99'999'999) + "{}");
  EXPECT_REFUSED(File::open(folder.at("x.safetensors")), "larger than the 2 bytes");
}

TEST(FileAttack, OnlyPlainFilesAreOpened) {
  TemporaryFolder folder;
  write_file(folder.at("real.safetensors"), file_image("{}", ""));
  EXPECT_NO_THROW(File::open(folder.at("real.safetensors")));
  std::filesystem::create_symlink("real.safetensors", folder.at("link.safetensors"));
  EXPECT_REFUSED(File::open(folder.at("link.safetensors")), "link.safetensors: is a symbolic link");
  ASSERT_EQ(::mkfifo(folder.at("pipe.safetensors").c_str(), 0600), 0);
  EXPECT_REFUSED(File::open(folder.at("pipe.safetensors")), "pipe.safetensors: not a regular file");
  std::filesystem::create_directory(folder.at("dir.safetensors"));
  EXPECT_REFUSED(File::open(folder.at("dir.safetensors")), "dir.safetensors: not a regular file");
  EXPECT_REFUSED(File::open("/dev/zero"), "/dev/zero: not a regular file");
  EXPECT_REFUSED(File::open(folder.at("none.safetensors")), "cannot open: No such file");
  EXPECT_REFUSED(File::open(folder.path() + "/"), "not the name of a file");
  EXPECT_REFUSED(File::open(folder.path() + "/.."), "not the name of a file");
}

TEST(FileAttack, PicklesAreRefusedByName) {
  TemporaryFolder folder;
  for (const char* name : {"pytorch_model.bin", "model.pt", "model.pth", "last.CKPT", "x.pkl"}) {
    write_file(folder.at(name), file_image("{}", ""));  // even when it would be readable
    EXPECT_REFUSED(File::open(folder.at(name)), "is a Python pickle: reading one can run any code");
  }
}

}  // namespace
}  // namespace pleat::safetensors
