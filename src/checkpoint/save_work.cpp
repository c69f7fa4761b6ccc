#include "checkpoint/save_work.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/shard_writer.h"

namespace pleat::checkpoint {

namespace {

using Json = nlohmann::json;

constexpr char kSame[] = "same", kOther[] = "other";

base::Sha256Digest digest_from(const Json& json) {
  base::Sha256Digest out;
  PLEAT_CHECK(base::from_hex(json.get<std::string>(), out));
  return out;
}

std::string about(const char* what, const Loaded& checkpoint) {
  return Json{{"do", what}, {"in", checkpoint.path()}, {"sha256", base::to_hex(checkpoint.manifest_sha256())}}
      .dump();
}

Loaded open_named(base::Vfs& vfs, const Json& order, int rank) {
  const std::string path = order.at("in");
  return rank == 0 ? open(vfs, path) : open_same(vfs, path, digest_from(order.at("sha256")));
}

std::string table_sha256(int64_t step, const std::vector<const ShareTensor*>& tensors) {
  base::Sha256 hash;
  hash.update(fmt::format("step {}\n", step));
  for (const ShareTensor* t : tensors)
    hash.update(fmt::format("{}\n{}\n{}\n{}\n", t->name, tensor::name_of(t->dtype), fmt::join(t->shape, " "),
                            t->row_bytes));
  return hash.hex();
}

}  // namespace

namespace order {

std::string describe() { return Json{{"do", "describe"}}.dump(); }

Description description(const std::string& answer) {
  const Json json = Json::parse(answer);
  Description out{json.at("table"), {}};
  for (const Json& s : json.at("slices"))
    out.slices.push_back({s.at(0), {s.at(1), s.at(2), s.at(3), s.at(4)}, digest_from(s.at(5))});
  return out;
}

std::string write(const std::string& directory, const Manifest& manifest,
                  const std::vector<int64_t>& starts) {
  return Json{{"do", "write"}, {"in", directory}, {"manifest", print_manifest(manifest)}, {"starts", starts}}
      .dump();
}

std::string read_back() { return Json{{"do", "read back"}}.dump(); }

std::vector<base::Sha256Digest> digests(const std::string& answer) {
  std::vector<base::Sha256Digest> out;
  for (const Json& hex : Json::parse(answer)) out.push_back(digest_from(hex));
  return out;
}

std::string verify(const Loaded& checkpoint) { return about("verify", checkpoint); }

std::string compare(const Loaded& checkpoint) { return about("compare", checkpoint); }

bool is_same(const std::string& answer) { return answer == kSame; }

}  // namespace order

void verify_as_ordered(base::Vfs& vfs, const std::string& order, int rank, int size) {
  const Loaded loaded = open_named(vfs, Json::parse(order), rank);
  loaded.verify(range_for(loaded.manifest(), rank, size));
}

std::string SaveWork::carry_out(const std::string& order) {
  const Json json = Json::parse(order);
  const std::string what = json.at("do");
  if (what == "describe") return describe();
  if (what == "read back") return read_back();
  if (what == "write") {
    write(json.at("in"), json.at("manifest"), json.at("starts").at(static_cast<size_t>(rank_)));
    return {};
  }
  if (what == "verify") return verify_as_ordered(vfs_, order, rank_, size_), std::string();
  PLEAT_CHECK(what == "compare", "order '{}'", what);
  return holds_share(open_named(vfs_, json, rank_)) ? kSame : kOther;
}

std::string SaveWork::describe() {
  stream_.emplace(share_);
  Json slices = Json::array();
  for (const SliceEntry& s : stream_->slices())
    slices.push_back({s.tensor_idx, s.where.row_begin, s.where.row_end, s.where.byte_begin, s.where.byte_end,
                      base::to_hex(s.sha256)});
  return Json{{"table", table_sha256(share_.step, stream_->tensors())}, {"slices", std::move(slices)}}.dump();
}

void SaveWork::write(const std::string& directory, const std::string& manifest, int64_t start) {
  directory_ = directory;
  manifest_ = parse_manifest(manifest, "checkpoint to be saved");
  write_shards(vfs_, directory, manifest_, start, *stream_, max_file_attempts_);
  // Names that another host's fsync may not cover; the leader's own comes with the manifest.
  if (rank_ != 0) vfs_.fsync_dir(directory);
}

std::string SaveWork::read_back() {
  Json out = Json::array();
  for (const base::Sha256Digest& digest :
       digest_tensors(vfs_, directory_, manifest_, SliceIndex(manifest_), range_for(manifest_, rank_, size_)))
    out.push_back(base::to_hex(digest));
  return out.dump();
}

bool SaveWork::holds_share(const Loaded& checkpoint) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;
  PartReader reader(checkpoint);
  std::vector<std::byte> there;
  for (const ShareTensor* t : stream_->tensors()) {
    ConstBytes::Reader own = t->bytes.reader();
    for (const Part& part : t->parts())
      for (int64_t done = 0; done < part.count;) {
        const int64_t begin = part.out_begin + done;
        auto here = own.at(begin, part.out_begin + part.count);
        here = here.first(std::min(here.size(), static_cast<size_t>(kAtOnce)));
        const Part now{part.tensor_begin + done, 0, static_cast<int64_t>(here.size())};
        there.resize(here.size());
        reader.read(t->name, {&now, 1}, there);
        if (std::memcmp(there.data(), here.data(), here.size()) != 0) return false;
        done += now.count;
      }
  }
  return true;
}

}  // namespace pleat::checkpoint
