#include "data/tokenizer/token_table.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "data/tokenizer/piece_cache.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {

TokenTable::TokenTable(size_t num_expected)
    : id_limit_(
          static_cast<int64_t>(std::min<size_t>(4 * num_expected + (size_t{1} << 16), size_t{1} << 30))),
      slots_(std::bit_ceil(std::max<size_t>(16, 2 * num_expected)), -1) {}

void TokenTable::add(std::string_view token, int64_t id, std::string_view where) {
  if (id < 0 || id >= id_limit_)
    base::fail("{}: token \"{}\" has id {}; with this many tokens ids from 0 to {} make sense", where,
               shown(token), id, id_limit_ - 1);
  if (has(id))
    base::fail("{}: tokens \"{}\" and \"{}\" have the same id {}", where,
               shown(text(static_cast<int32_t>(id))), shown(token), id);
  if (find(token) >= 0) base::fail("{}: token \"{}\" appears twice", where, shown(token));
  if (buffer_.size() + token.size() >= UINT32_MAX) base::fail("{}: the tokens are longer than 4 GiB", where);
  if (static_cast<size_t>(id) >= by_id_.size()) by_id_.resize(static_cast<size_t>(id) + 1);
  by_id_[static_cast<size_t>(id)] = {static_cast<uint32_t>(buffer_.size()),
                                     static_cast<uint32_t>(token.size())};
  buffer_.append(token);
  ++num_tokens_;
  if (static_cast<size_t>(num_tokens_) * 2 > slots_.size()) {
    grow();
    return;
  }
  size_t slot = hash_bytes(token) & (slots_.size() - 1);
  while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = static_cast<int32_t>(id);
}

void TokenTable::grow() {
  slots_.assign(slots_.size() * 2, -1);
  for (size_t id = 0; id < by_id_.size(); ++id) {
    if (by_id_[id].size == kHole) continue;
    size_t slot = hash_bytes(text(static_cast<int32_t>(id))) & (slots_.size() - 1);
    while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<int32_t>(id);
  }
}

int32_t TokenTable::find(std::string_view token) const {
  for (size_t slot = hash_bytes(token) & (slots_.size() - 1); slots_[slot] >= 0;
       slot = (slot + 1) & (slots_.size() - 1))
    if (text(slots_[slot]) == token) return slots_[slot];
  return -1;
}

bool TokenTable::has(int64_t id) const {
  return id >= 0 && static_cast<size_t>(id) < by_id_.size() && by_id_[static_cast<size_t>(id)].size != kHole;
}

std::string_view TokenTable::text(int32_t id) const {
  const Entry& entry = by_id_[static_cast<size_t>(id)];
  return std::string_view(buffer_).substr(entry.begin, entry.size);
}

PairTable::PairTable(size_t num_expected) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, 2 * num_expected + 1));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void PairTable::set(int32_t left, int32_t right, Value value) {
  const uint64_t key = key_of(left, right);
  size_t i = slot_of(key);
  while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & mask_;
  slots_[i] = {key, value};
}

}  // namespace pleat::data
