#include "safetensors/quantized/block_tensor.h"

#include <algorithm>

#include "base/error.h"
#include "safetensors/json_text.h"

namespace pleat::safetensors {

namespace {

TensorInfo info_of(TensorSpec numbers, const std::string& where) {
  TensorInfo out;
  static_cast<TensorSpec&>(out) = std::move(numbers);
  out.end = num_bytes_of(out, where);
  return out;
}

const char* const kScaleInv = "_scale_inv";
const char* const kBlocks = "_blocks";
const char* const kScales = "_scales";

class Finder {
 public:
  Finder(const Scheme& scheme, std::span<const StoredTensor> stored)
      : scheme_(scheme), stored_(stored), plain_modules_(scheme.plain_modules) {
    out_.consumed.assign(stored.size(), false);
  }

  BlockTensors find(const std::string& folder) {
    for (size_t i = 0; i < stored_.size(); ++i) {
      if (scheme_.method == Scheme::Method::Fp8)
        take_fp8(i);
      else
        take_mxfp4(i);
    }
    if (num_named_plain_ > 0)
      out_.warnings.push_back(fmt::format(
          "{}: {} tensor(s) are stored as codes though modules_to_not_convert of config.json names "
          "them, and are dequantized like the others, the first: {}",
          folder, num_named_plain_, first_named_plain_));
    if (out_.tensors.empty())
      out_.warnings.push_back(fmt::format(
          "{}: config.json says that weights are stored as {}, but none is; they are read as they are",
          folder, scheme_.text()));
    return std::move(out_);
  }

 private:
  void take_fp8(size_t i) {
    const TensorInfo& tensor = *stored_[i].tensor;
    if (tensor.type == ElementType::F8E5M2)
      base::fail("{}: tensor {} is F8_E5M2; fp8 weights are read as F8_E4M3", stored_[i].file->path(),
                 shown(tensor.name));
    if (tensor.type == ElementType::F8E4M3) {
      const size_t scales = partner(i, tensor.name, kScaleInv, "codes of fp8", "scales");
      take(i, scales, tensor.name, make_fp8_tensor(stored_[i], stored_[scales], scheme_));
    } else if (tensor.name.ends_with(kScaleInv)) {
      const std::string name = without(tensor.name, kScaleInv);
      const size_t codes = partner(i, name, "", "scales of fp8", "codes");
      if (stored_[codes].tensor->type != ElementType::F8E4M3)
        base::fail("{}: tensor {} is {}, but there are scales for it ({}); needed is F8_E4M3",
                   stored_[codes].file->path(), shown(name), name_of(stored_[codes].tensor->type),
                   shown(tensor.name));
    }
  }

  void take_mxfp4(size_t i) {
    const TensorInfo& tensor = *stored_[i].tensor;
    if (tensor.name.ends_with(kBlocks)) {
      const std::string name = without(tensor.name, kBlocks);
      const size_t scales = partner(i, name, kScales, "codes of mxfp4", "scales");
      take(i, scales, name, make_mxfp4_tensor(stored_[i], stored_[scales], name));
    } else if (tensor.name.ends_with(kScales)) {
      partner(i, without(tensor.name, kScales), kBlocks, "scales of mxfp4", "codes");
    }
  }

  static std::string without(const std::string& name, std::string_view end) {
    return name.substr(0, name.size() - end.size());
  }

  size_t partner(size_t i, const std::string& name, const char* end, const char* what, const char* missing) {
    const std::string wanted = name + end;
    const auto at =
        std::lower_bound(stored_.begin(), stored_.end(), wanted,
                         [](const StoredTensor& s, const std::string& n) { return s.tensor->name < n; });
    if (at == stored_.end() || at->tensor->name != wanted)
      base::fail("{}: tensor {} holds {}, but there is no tensor {} with its {}", stored_[i].file->path(),
                 shown(stored_[i].tensor->name), what, shown(wanted), missing);
    return static_cast<size_t>(at - stored_.begin());
  }

  void take(size_t codes, size_t scales, const std::string& name, std::unique_ptr<BlockTensor> tensor) {
    out_.consumed[codes] = out_.consumed[scales] = true;
    if (plain_modules_.mean(name) && num_named_plain_++ == 0) first_named_plain_ = shown(name);
    out_.tensors.push_back(std::move(tensor));
  }

  const Scheme& scheme_;
  const std::span<const StoredTensor> stored_;
  const ModuleNames plain_modules_;
  BlockTensors out_;
  int64_t num_named_plain_ = 0;
  std::string first_named_plain_;
};

}  // namespace

BlockTensor::BlockTensor(TensorSpec numbers, int64_t num_units, const std::string& where)
    : info_(info_of(std::move(numbers), where)),
      unit_bytes_(num_units > 0 ? info_.num_bytes() / num_units : 0) {}

void BlockTensor::read(int64_t first_byte, std::span<std::byte> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  if (first_byte < 0 || first_byte > info_.num_bytes() || count > info_.num_bytes() - first_byte)
    base::fail("{} bytes from byte {} on reach beyond the {} bytes of tensor {}", count, first_byte,
               info_.num_bytes(), shown(info_.name));
  std::vector<std::byte> unit;
  while (!out.empty()) {
    const int64_t unit_idx = first_byte / unit_bytes_, skipped = first_byte % unit_bytes_;
    const int64_t whole = static_cast<int64_t>(out.size()) / unit_bytes_;
    int64_t taken = whole * unit_bytes_;
    if (skipped == 0 && whole > 0) {
      decode(unit_idx, whole, out.first(static_cast<size_t>(taken)));
    } else {
      unit.resize(static_cast<size_t>(unit_bytes_));
      decode(unit_idx, 1, unit);
      taken = std::min(static_cast<int64_t>(out.size()), unit_bytes_ - skipped);
      std::copy_n(unit.begin() + skipped, taken, out.begin());
    }
    first_byte += taken;
    out = out.subspan(static_cast<size_t>(taken));
  }
}

BlockTensors find_block_tensors(const Scheme& scheme, std::span<const StoredTensor> stored,
                                const std::string& folder) {
  if (!scheme.is_plain()) return Finder(scheme, stored).find(folder);
  BlockTensors none;
  none.consumed.assign(stored.size(), false);
  return none;
}

}  // namespace pleat::safetensors
