#include "data/tokenizer/bpe_model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

size_t vocabulary_size(const Json& json, const std::string& where) {
  const Json& vocabulary = need(json, "vocab", where);
  if (!vocabulary.is_object()) base::fail("{}.vocab: {}; an object is needed", where, vocabulary.type_name());
  if (vocabulary.empty()) base::fail("{}.vocab: the vocabulary is empty; no text has tokens by it", where);
  return vocabulary.size();
}

// Both the empty string and null say that there is none.
void refuse_text(const Json& json, const char* key, const std::string& where) {
  const Json* value = find(json, key);
  if (value != nullptr && !(value->is_string() && value->get<std::string>().empty()))
    base::fail("{}.{}: is set, which is not supported", where, key);
}

void append_token(const TokenTable& table, std::string_view part, std::vector<int32_t>& ids,
                  std::string_view merge, const std::string& where) {
  const int32_t id = table.find(part);
  if (id < 0)
    base::fail("{}: merge \"{}\" needs the token \"{}\", which the vocabulary lacks", where, shown(merge),
               shown(part));
  ids.push_back(id);
}

}  // namespace

BpeModel::BpeModel(const Json& json, bool bytes, const std::string& where)
    : vocabulary_(vocabulary_size(json, where)), bytes_(bytes) {
  only_keys(json,
            {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
             "byte_fallback", "ignore_merges", "vocab", "merges"},
            where);
  if (const Json* dropout = find(json, "dropout"); dropout != nullptr && *dropout != 0)
    base::fail("{}.dropout: is set; encoding would be random, which is not supported", where);
  refuse_text(json, "continuing_subword_prefix", where);
  refuse_text(json, "end_of_word_suffix", where);
  byte_fallback_ = bool_at(json, "byte_fallback", false, where);
  fuse_unknown_ = bool_at(json, "fuse_unk", false, where);
  ignore_merges_ = bool_at(json, "ignore_merges", false, where);

  for (const auto& item : need(json, "vocab", where).items()) {
    if (!item.value().is_number_integer())
      base::fail("{}.vocab: the id of \"{}\" is no integer", where, shown(item.key()));
    vocabulary_.add(item.key(), item.value().get<int64_t>(), where + ".vocab");
  }
  if (find(json, "unk_token") != nullptr) {
    unknown_id_ = vocabulary_.find(string_at(json, "unk_token", where));
  }
  bool all_bytes = bytes_, all_fall_back = byte_fallback_;
  for (int b = 0; b < 256; ++b) {
    std::string character;
    append_code_point(character, byte_character(static_cast<unsigned char>(b)));
    byte_ids_[b] = vocabulary_.find(character);
    fallback_ids_[b] = vocabulary_.find(fmt::format("<0x{:02X}>", b));
    all_bytes = all_bytes && byte_ids_[b] >= 0;
    all_fall_back = all_fall_back && fallback_ids_[b] >= 0;
  }
  // Some files name one they lack, and never need it.
  if (find(json, "unk_token") != nullptr && unknown_id_ < 0 && !all_bytes && !all_fall_back)
    base::fail("{}.unk_token: the vocabulary lacks \"{}\"", where,
               shown(string_at(json, "unk_token", where)));
  read_merges(need(json, "merges", where), where + ".merges");
}

void BpeModel::read_merges(const Json& merges, const std::string& where) {
  if (!merges.is_array()) base::fail("{}: {}; an array is needed", where, merges.type_name());
  if (merges.size() >= UINT32_MAX) base::fail("{}: {} merges", where, merges.size());
  pairs_ = PairTable(merges.size());
  std::vector<int32_t> merged_ids, part_ids;
  std::string left, right;
  uint32_t rank = 0;
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      const auto& line = merge.get_ref<const std::string&>();
      if (line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
        base::fail("{}[{}]: \"{}\" is not two tokens with a space between", where, rank, shown(line));
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      base::fail("{}[{}]: neither a string nor a pair of strings", where, rank);
    }
    const std::string together = left + right;
    append_token(vocabulary_, left, part_ids, together, where);
    append_token(vocabulary_, right, part_ids, together, where);
    append_token(vocabulary_, together, merged_ids, together, where);
    pairs_.set(part_ids[part_ids.size() - 2], part_ids.back(), {rank, merged_ids.back()});
    ++rank;
  }
  if (!bytes_) find_cuts(merged_ids, part_ids);
}

void BpeModel::find_cuts(const std::vector<int32_t>& merged_ids, const std::vector<int32_t>& part_ids) {
  // Symbols that do not spell the text they stand for must take part in no merge.
  std::vector<bool> spells_other(static_cast<size_t>(vocabulary_.max_id() + 1), false);
  if (unknown_id_ >= 0) spells_other[static_cast<size_t>(unknown_id_)] = true;
  for (const int32_t id : fallback_ids_)
    if (byte_fallback_ && id >= 0) spells_other[static_cast<size_t>(id)] = true;
  for (const int32_t id : part_ids)
    if (spells_other[static_cast<size_t>(id)]) return;
  may_cut_ = true;
  known_characters_.assign(0x110000 / 64, 0);
  for (int64_t id = 0; id <= vocabulary_.max_id(); ++id) {
    if (!vocabulary_.has(id)) continue;
    const std::string_view token = vocabulary_.text(static_cast<int32_t>(id));
    size_t at = 0;
    const uint32_t c = token.empty() ? 0 : next_code_point(token, at);
    if (!token.empty() && at == token.size()) known_characters_[c / 64] |= uint64_t{1} << c % 64;
  }
  size_t num_pairs = 0;
  for (const int32_t id : merged_ids) num_pairs += vocabulary_.text(id).size();
  PairTable all(num_pairs);
  size_t num_different = 0;
  const auto for_each_pair = [&](const auto& visit) {
    for (const int32_t id : merged_ids) {
      const std::string_view token = vocabulary_.text(id);
      int32_t previous = -1;
      for (size_t at = 0; at < token.size();) {
        const auto c = static_cast<int32_t>(next_code_point(token, at));
        if (previous >= 0) visit(previous, c);
        previous = c;
      }
    }
  };
  for_each_pair([&](int32_t a, int32_t b) {
    if (all.find(a, b).rank == UINT32_MAX) ++num_different;
    all.set(a, b, {0, 0});
  });
  neighbours_ = PairTable(2 * num_different);
  for_each_pair([&](int32_t a, int32_t b) { neighbours_.set(a, b, {0, 0}); });
}

void BpeModel::encode(std::string_view piece, std::vector<int32_t>& out, Workspace& workspace) const {
  if (piece.size() >= UINT32_MAX)
    base::fail("a document of {} bytes is too long; split the text", piece.size());
  if (!may_cut_) {
    encode_cached(piece, out, workspace);
    return;
  }
  if (ignore_merges_)
    if (const int32_t id = vocabulary_.find(piece); id >= 0) {
      out.push_back(id);
      return;
    }
  const auto known = [&](uint32_t c) { return (known_characters_[c / 64] >> c % 64 & 1) != 0; };
  size_t begin = 0, at = 0;
  uint32_t previous = 0;
  bool previous_known = false;
  while (at < piece.size()) {
    const size_t here = at;
    const uint32_t c = next_code_point(piece, at);
    const bool c_known = known(c);
    if (here > begin && c_known && previous_known &&
        neighbours_.find(static_cast<int32_t>(previous), static_cast<int32_t>(c)).rank == UINT32_MAX) {
      encode_cached(piece.substr(begin, here - begin), out, workspace);
      begin = here;
    }
    previous = c;
    previous_known = c_known;
  }
  if (begin < piece.size()) encode_cached(piece.substr(begin), out, workspace);
}

void BpeModel::encode_cached(std::string_view piece, std::vector<int32_t>& out, Workspace& workspace) const {
  if (piece.size() > PieceCache::kMaxPieceBytes) {
    encode_new(piece, out, workspace);
    return;
  }
  const uint64_t hash = hash_bytes(piece);
  if (const auto* ids = workspace.cache.find(piece, hash)) {
    out.insert(out.end(), ids->begin(), ids->end());
    return;
  }
  const size_t before = out.size();
  encode_new(piece, out, workspace);
  workspace.cache.insert(piece, hash, std::span(out).subspan(before));
}

void BpeModel::encode_new(std::string_view piece, std::vector<int32_t>& out, Workspace& workspace) const {
  if (ignore_merges_ && !may_cut_) {
    workspace.spelled.clear();
    if (bytes_)
      append_byte_characters(workspace.spelled, piece);
    else
      workspace.spelled = piece;
    if (const int32_t id = vocabulary_.find(workspace.spelled); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  check_word(piece);
  first_symbols(piece, workspace);
  const auto candidate = [this](const BpeSymbol& left, const BpeSymbol& right) {
    const PairTable::Value value = pairs_.find(left.id, right.id);
    return BpeCandidate{value.rank, value.id};
  };
  BpeMerger<BpeSymbol, decltype(candidate)>(candidate).run(workspace.symbols);
  for (const BpeSymbol& symbol : workspace.symbols) out.push_back(symbol.id);
}

// One symbol per character (per byte in byte mode), bytes where the vocabulary lacks it, the unknown token
// where that fails too. An unknown run that waits to be joined goes in before the next known character, not
// before fallback bytes: the order Hugging Face's library gives.
void BpeModel::first_symbols(std::string_view piece, Workspace& workspace) const {
  auto& symbols = workspace.symbols;
  symbols.clear();
  bool unknown_waits = false;
  const auto add = [&](int32_t id) { symbols.push_back({.id = id}); };
  std::string spelled;
  for (size_t at = 0; at < piece.size();) {
    int32_t id = -1;
    std::string_view character;
    if (bytes_) {
      const auto byte = static_cast<unsigned char>(piece[at++]);
      id = byte_ids_[byte];
      if (id < 0) {
        spelled.clear();
        append_code_point(spelled, byte_character(byte));
        character = spelled;
      }
    } else {
      const size_t begin = at;
      next_code_point(piece, at);
      character = piece.substr(begin, at - begin);
      id = vocabulary_.find(character);
    }
    if (id >= 0) {
      if (unknown_waits) add(unknown_id_);
      unknown_waits = false;
      add(id);
      continue;
    }
    const bool falls_back = byte_fallback_ && std::all_of(character.begin(), character.end(), [&](char c) {
                              return fallback_ids_[static_cast<unsigned char>(c)] >= 0;
                            });
    if (falls_back) {
      for (const char c : character) add(fallback_ids_[static_cast<unsigned char>(c)]);
    } else if (unknown_id_ >= 0) {
      if (unknown_waits && !fuse_unknown_) add(unknown_id_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) add(unknown_id_);
}

}  // namespace pleat::data
