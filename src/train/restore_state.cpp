#include "train/restore_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "base/checked.h"
#include "base/error.h"
#include "model/state.h"
#include "safetensors/convert.h"
#include "tensor/block_codes.h"
#include "tensor/short_master.h"

namespace pleat::train {
namespace {

using checkpoint::Expected;
using checkpoint::Loaded;
using checkpoint::Part;
using checkpoint::Target;
using checkpoint::TensorEntry;

constexpr std::string_view kRest = model::kRest, kScale = model::kScale;

const TensorEntry* find(const Loaded& loaded, const std::string& name) {
  const std::vector<TensorEntry>& all = loaded.manifest().tensors;  // ascending by name
  const auto at = std::lower_bound(all.begin(), all.end(), name,
                                   [](const TensorEntry& e, const std::string& n) { return e.name < n; });
  return at != all.end() && at->name == name ? &*at : nullptr;
}

// How a target is made of what the checkpoint has.
struct Source {
  std::string name;  // of a tensor in the checkpoint
  enum From {
    Bits,
    Plain,
    Joined,
    Coded
  } from = Bits;  // Joined: a bf16 with its rest; Coded: codes with their scales
  enum To { Numbers, High, Rest, Codes, Scales } to = Numbers;
  model::Coding coding{};  // of Coded, or of Codes and Scales
  std::string second() const { return name + std::string(from == Joined ? kRest : kScale); }
  bool has_second() const { return from == Joined || from == Coded; }
};

using Wanted = std::map<std::string, tensor::Dtype>;

std::string_view state_of(std::string_view name) {
  return name.substr(std::min(name.rfind('.'), name.size()));
}

Source source_of(const Loaded& loaded, const std::string& name, tensor::Dtype dtype, const Wanted& wanted) {
  using tensor::Dtype;
  const auto without = [&](std::string_view end) { return name.substr(0, name.size() - end.size()); };
  const TensorEntry* same = find(loaded, name);
  if (name.ends_with(kScale)) {
    if (same) return {.name = name};
    const std::string moment = without(kScale);
    return {.name = moment,
            .from = Source::Plain,
            .to = Source::Scales,
            .coding = model::coding_of(state_of(moment), Dtype::U8)};
  }
  if (const model::Coding coding = model::coding_of(state_of(name), dtype); coding != model::Coding::None) {
    if (!same || same->dtype == dtype) return {.name = name};
    return {.name = name, .from = Source::Plain, .to = Source::Codes, .coding = coding};
  }
  if (same)
    if (const model::Coding coding = model::coding_of(state_of(name), same->dtype);
        coding != model::Coding::None)
      return {.name = name, .from = Source::Coded, .coding = coding};
  // A weight, its rest, or any other tensor.
  const bool is_rest = name.ends_with(kRest);
  const std::string weight = is_rest ? without(kRest) : name, rest_name = weight + std::string(kRest);
  const TensorEntry *stored = find(loaded, weight), *stored_rest = find(loaded, rest_name);
  const auto wanted_rest = wanted.find(rest_name);
  const bool joined = stored && stored->dtype == Dtype::BF16 && stored_rest;
  const auto from = joined ? Source::Joined : Source::Plain;
  if (is_rest) {
    if (same && same->dtype == dtype) return {.name = name};
    return {.name = weight, .from = from, .to = Source::Rest};
  }
  if (!same || same->dtype == dtype) return {.name = name};
  if (wanted_rest != wanted.end()) return {.name = name, .from = from, .to = Source::High};
  return {.name = name, .from = from};
}

// What the checkpoint must hold, in the types it has.
template <class Tensor>  // Target or Expected
std::vector<Expected> expected_in(const Loaded& loaded, std::span<const Tensor> tensors,
                                  const Wanted& wanted) {
  using tensor::Dtype;
  std::vector<Expected> out;
  std::set<std::string> seen;
  const auto expect = [&](const std::string& name, Dtype dtype, const std::vector<int64_t>& shape) {
    if (seen.insert(name).second) out.push_back({name, dtype, shape});
  };
  const auto type_in = [&](const std::string& name, auto allowed, Dtype otherwise) {
    const TensorEntry* entry = find(loaded, name);
    return entry && allowed(entry->dtype) ? entry->dtype : otherwise;
  };
  for (const Tensor& tensor : tensors) {
    const Source source = source_of(loaded, tensor.name, tensor.dtype, wanted);
    if (source.from == Source::Bits) {
      expect(tensor.name, tensor.dtype, tensor.shape);
      // A run that keeps nothing beside the weight leaves what the checkpoint has.
      const std::string rest = tensor.name + std::string(kRest);
      if (tensor.dtype == Dtype::BF16 && find(loaded, rest) && !wanted.contains(rest))
        expect(rest,
               type_in(
                   rest, [](Dtype d) { return d == Dtype::U8; }, Dtype::I16),
               tensor.shape);
      continue;
    }
    if (source.to == Source::Scales) continue;  // made of the numbers that the codes beside it are made of
    if (source.from == Source::Coded) {
      int64_t elements = 1;
      for (const int64_t extent : tensor.shape)
        elements = base::checked_mul(elements, extent, tensor.name.c_str());
      expect(source.name, Dtype::U8, tensor.shape);
      expect(source.second(), Dtype::F32, {base::ceil_div(elements, tensor::kCodeBlock)});
      continue;
    }
    const Dtype wide = source.to == Source::Rest    ? Dtype::BF16
                       : source.to == Source::Codes ? Dtype::F32
                                                    : tensor.dtype;
    expect(source.name, type_in(source.name, tensor::is_float, wide), tensor.shape);
    if (source.from == Source::Joined)
      expect(source.second(),
             type_in(
                 source.second(), [](Dtype d) { return d == Dtype::U8; }, Dtype::I16),
             tensor.shape);
  }
  return out;
}

template <class Tensor>
Wanted wanted_of(std::span<const Tensor> tensors) {
  Wanted out;
  for (const Tensor& tensor : tensors) out.emplace(tensor.name, tensor.dtype);
  return out;
}

// Elements as they lie in the checkpoint, and what belongs to them: the rest of narrow ones, or the scales of the blocks
// that hold codes.
struct Raw {
  tensor::Dtype dtype{};
  std::vector<std::byte> bytes = {};
  tensor::Dtype second_dtype{};
  std::vector<std::byte> second = {};
  int64_t first = 0;  // of the elements, in the tensor
};

template <class T>
T at(const std::vector<std::byte>& bytes, size_t i) {
  T out{};
  PLEAT_CHECK((i + 1) * sizeof out <= bytes.size());
  std::memcpy(&out, bytes.data() + i * sizeof out, sizeof out);
  return out;
}

template <class Wide>
std::vector<Wide> numbers_of(const Raw& raw, const Source& source) {
  std::vector<Wide> numbers(raw.bytes.size() / static_cast<size_t>(tensor::size_of(raw.dtype)));
  if (source.from == Source::Plain) {
    safetensors::decode(safetensors::element_type_of(raw.dtype), raw.bytes, std::span(numbers));
    return numbers;
  }
  const int64_t first_block = raw.first / tensor::kCodeBlock;
  for (size_t i = 0; i < numbers.size(); ++i)
    if (source.from == Source::Coded)
      numbers[i] = static_cast<Wide>(model::decoded(
          source.coding, at<uint8_t>(raw.bytes, i),
          at<float>(raw.second,
                    static_cast<size_t>((raw.first + static_cast<int64_t>(i)) / tensor::kCodeBlock -
                                        first_block))));
    else if (raw.second_dtype == tensor::Dtype::U8)
      numbers[i] =
          static_cast<Wide>(tensor::join_short(at<uint16_t>(raw.bytes, i), at<int8_t>(raw.second, i)));
    else
      numbers[i] = static_cast<Wide>(tensor::join(at<uint16_t>(raw.bytes, i), at<int16_t>(raw.second, i)));
  return numbers;
}

// Element i of what a float becomes; `out` may lie at any address.
template <class T>
void put(std::span<std::byte> out, size_t i, T number) {
  PLEAT_CHECK((i + 1) * sizeof number <= out.size());
  std::memcpy(out.data() + i * sizeof number, &number, sizeof number);
}

// Whole blocks, the last of which may be shorter.
template <class Code>
void put_codes(const Source& source, std::vector<float> numbers, std::span<std::byte> out) {
  if (source.coding == model::Coding::Root)
    for (float& x : numbers) x = std::sqrt(x);
  uint8_t codes[tensor::kCodeBlock];
  for (size_t begin = 0; begin < numbers.size(); begin += tensor::kCodeBlock) {
    const auto count = std::min(tensor::kCodeBlock, static_cast<int64_t>(numbers.size() - begin));
    const float scale = tensor::encode_block<Code>(numbers.data() + begin, count, codes);
    if (source.to == Source::Scales)
      put(out, begin / tensor::kCodeBlock, scale);
    else
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) put(out, begin + i, codes[i]);
  }
}

template <class Wide>
void convert_as(const Raw& raw, const Source& source, tensor::Dtype to, std::span<std::byte> out) {
  const std::vector<Wide> numbers = numbers_of<Wide>(raw, source);
  if (source.to == Source::Numbers)
    return safetensors::encode(safetensors::element_type_of(to), std::span<const Wide>(numbers), out);
  if (source.to == Source::High || source.to == Source::Rest) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const tensor::Halves halves = tensor::split(static_cast<float>(numbers[i]));
      if (source.to == Source::High)
        put(out, i, halves.high);
      else if (to == tensor::Dtype::U8)
        put(out, i, tensor::short_rest(halves.rest));
      else
        put(out, i, halves.rest);
    }
    return;
  }
  std::vector<float> floats(numbers.begin(), numbers.end());
  if (source.coding == model::Coding::Root)
    put_codes<tensor::RootCode>(source, std::move(floats), out);
  else
    put_codes<tensor::SignedCode>(source, std::move(floats), out);
}

void convert(const Raw& raw, const Source& source, tensor::Dtype to, std::span<std::byte> out) {
  if (raw.dtype == tensor::Dtype::F64 || to == tensor::Dtype::F64)
    convert_as<double>(raw, source, to, out);
  else
    convert_as<float>(raw, source, to, out);
}

// A few MiB of a target from what the checkpoint has.
void convert_part(const Loaded& loaded, checkpoint::PartReader& numbers, checkpoint::PartReader& seconds,
                  const Source& source, tensor::Dtype to, const Part& part, std::span<std::byte> out) {
  const TensorEntry& entry = loaded.tensor(source.name);
  const int64_t to_size = tensor::size_of(to), from_size = tensor::size_of(entry.dtype),
                all = entry.length / from_size;
  const int64_t span = source.to == Source::Scales ? tensor::kCodeBlock : 1;
  // Elements [begin, end) of a tensor of the checkpoint.
  const auto read = [&](checkpoint::PartReader& reader, const std::string& from, int64_t size, int64_t begin,
                        int64_t end, std::vector<std::byte>& bytes) {
    const Part there{begin * size, 0, (end - begin) * size};
    bytes.resize(static_cast<size_t>(there.count));
    reader.read(from, {&there, 1}, bytes);
  };
  const int64_t begin = part.tensor_begin / to_size * span,
                end = std::min(all, (part.tensor_begin + part.count) / to_size * span);
  PLEAT_CHECK((source.to != Source::Codes && source.to != Source::Scales) || begin % tensor::kCodeBlock == 0,
              "'{}' is cut at element {}, inside a block", entry.name, begin);
  Raw raw{.dtype = entry.dtype, .first = begin};
  read(numbers, source.name, from_size, begin, end, raw.bytes);
  if (source.has_second()) raw.second_dtype = loaded.tensor(source.second()).dtype;
  const int64_t second_size = tensor::size_of(raw.second_dtype);
  if (source.from == Source::Joined) read(seconds, source.second(), second_size, begin, end, raw.second);
  if (source.from == Source::Coded)
    read(seconds, source.second(), second_size, begin / tensor::kCodeBlock,
         base::ceil_div(end, tensor::kCodeBlock), raw.second);
  convert(raw, source, to, out);
}

}  // namespace

void restore_state(const Loaded& loaded, std::span<const Target> targets) {
  const Wanted wanted = wanted_of(targets);
  checkpoint::require_fits(loaded, expected_in(loaded, targets, wanted));
  loaded.verify();
  PartRestorer converted(loaded, wanted);
  for (const Target& target : targets) {
    const Source source = source_of(loaded, target.name, target.dtype, wanted);
    if (source.from == Source::Bits) {
      loaded.read_tensor(source.name, target.bytes);
      continue;
    }
    // Each block is checked again.
    const Part all{0, 0, target.bytes.size()};
    converted.read(target.name, target.dtype, {&all, 1}, target.bytes);
  }
}

PartRestorer PartRestorer::of_weights(const Loaded& loaded, std::span<const Expected> weights) {
  std::vector<Expected> there;
  std::copy_if(weights.begin(), weights.end(), std::back_inserter(there), [&](const Expected& e) {
    return !e.name.ends_with(".router.expert_bias") || find(loaded, e.name);
  });
  Wanted wanted = wanted_of(std::span<const Expected>(there));
  for (const Expected& e : expected_in(loaded, std::span<const Expected>(there), wanted)) {
    const TensorEntry& entry = loaded.tensor(e.name);
    if (entry.shape != e.shape)
      base::fail("{}: '{}' has another shape than the model", loaded.path(), e.name);
    if (entry.dtype != e.dtype)
      base::fail("{}: '{}' is {}, needed {}", loaded.path(), e.name, tensor::name_of(entry.dtype),
                 tensor::name_of(e.dtype));
  }
  return PartRestorer(loaded, std::move(wanted));
}

bool PartRestorer::has(const std::string& name) const { return wanted_.contains(name); }

PartRestorer::PartRestorer(const Loaded& loaded, std::span<const Expected> state)
    : loaded_(loaded), wanted_(wanted_of(state)), reader_(loaded), second_reader_(loaded) {
  checkpoint::require_fits(loaded, expected_in(loaded, state, wanted_));
}

void PartRestorer::read(const std::string& name, tensor::Dtype dtype, std::span<const Part> parts,
                        const checkpoint::Bytes& out) {
  const Source source = source_of(loaded_, name, dtype, wanted_);
  // Nothing of the tensor's size beside the state. A scale takes the numbers of its block.
  constexpr int64_t kBytesAtOnce = int64_t{4} << 20;
  const int64_t at_once = source.to == Source::Scales ? kBytesAtOnce / tensor::kCodeBlock : kBytesAtOnce;
  for (size_t i = 0; i < parts.size();) {
    // Parts that follow each other where they go are written together: there may be many small ones.
    size_t last = i;
    const auto end_of = [&](size_t part) { return parts[part].out_begin + parts[part].count; };
    while (last + 1 < parts.size() && parts[last + 1].out_begin == end_of(last)) ++last;
    PLEAT_CHECK(parts[i].out_begin >= 0 && end_of(last) <= out.size(), "'{}': {} bytes do not fit into {}",
                name, end_of(last), out.size());
    out.write(parts[i].out_begin, end_of(last), [&](int64_t begin, std::span<std::byte> room) {
      while (!room.empty()) {
        while (begin >= end_of(i)) ++i;
        const int64_t inside = begin - parts[i].out_begin;
        const int64_t count = std::min({parts[i].count - inside, static_cast<int64_t>(room.size()), at_once});
        const Part part{parts[i].tensor_begin + inside, 0, count};
        const auto to = room.first(static_cast<size_t>(count));
        if (source.from == Source::Bits)
          reader_.read(name, {&part, 1}, to);
        else
          convert_part(loaded_, reader_, second_reader_, source, dtype, part, to);
        begin += count, room = room.subspan(to.size());
      }
    });
    i = last + 1;
  }
}

}  // namespace pleat::train
