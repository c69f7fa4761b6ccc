// mxfp4 of block_tensor.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "safetensors/json_text.h"
#include "safetensors/quantized/block_tensor.h"
#include "tensor/few_bits.h"

namespace pleat::safetensors {

namespace {

constexpr int64_t kGroupBytes = 16, kGroup = 2 * kGroupBytes;
constexpr int64_t kRowsAtOnce = 32;  // a cache line of a column

static_assert(std::endian::native == std::endian::little, "the files are, and decode_expert writes them so");

// The bf16 of every code under every scale but NaN. Each is exact: two bits of fraction at most, and bf16 has the
// exponents of a float.
using Bf16OfCodes = std::array<std::array<uint16_t, 16>, 255>;
const Bf16OfCodes& bf16_of_codes() {
  static const Bf16OfCodes table = [] {
    Bf16OfCodes out{};
    for (uint32_t scale = 0; scale < out.size(); ++scale)
      for (uint32_t code = 0; code < 16; ++code) {
        const auto exact = static_cast<float>(tensor::E2M1::value(code) * tensor::E8M0::value(scale));
        out[scale][code] = static_cast<uint16_t>(std::bit_cast<uint32_t>(exact) >> 16);
      }
    return out;
  }();
  return table;
}

class Mxfp4Tensor final : public BlockTensor {
 public:
  Mxfp4Tensor(const StoredTensor& codes, const StoredTensor& scales, const std::string& name)
      : BlockTensor({name,
                     ElementType::BF16,
                     {codes.tensor->shape[0], codes.tensor->shape[2] * kGroup, codes.tensor->shape[1]}},
                    codes.tensor->shape[0], codes.file->path()),
        codes_(codes),
        scales_(scales),
        rows_(codes.tensor->shape[1]),
        groups_(codes.tensor->shape[2]) {}

 private:
  void decode(int64_t first_expert, int64_t num_experts, std::span<std::byte> out) const override {
    std::vector<std::byte> codes(static_cast<size_t>(rows_ * groups_ * kGroupBytes));
    std::vector<std::byte> scales(static_cast<size_t>(rows_ * groups_));
    for (int64_t expert = first_expert; expert < first_expert + num_experts; ++expert) {
      codes_.file->read(*codes_.tensor, expert * static_cast<int64_t>(codes.size()), codes);
      scales_.file->read(*scales_.tensor, expert * static_cast<int64_t>(scales.size()), scales);
      refuse_nan(expert, scales);
      decode_expert(expert, codes, scales,
                    out.subspan(static_cast<size_t>((expert - first_expert) * unit_bytes()),
                                static_cast<size_t>(unit_bytes())));
    }
  }

  void refuse_nan(int64_t expert, const std::vector<std::byte>& scales) const {
    const auto nan = std::find(scales.begin(), scales.end(), std::byte{tensor::E8M0::kNan});
    if (nan == scales.end()) return;
    const int64_t at = nan - scales.begin();
    base::fail("{}: tensor {} holds 255, which is NaN, as the scale at {}; finite scales are needed",
               scales_.file->path(), shown(scales_.tensor->name),
               shape_text(std::array{expert, at / groups_, at % groups_}));
  }

  void decode_expert(int64_t expert, const std::vector<std::byte>& codes,
                     const std::vector<std::byte>& scales, std::span<std::byte> out) const {
    // Transposed in a tile of its own: columns of `out` often lie a power of two apart, which few cache lines share.
    std::array<std::array<uint16_t, kRowsAtOnce>, kGroup> tile;
    for (int64_t begin = 0; begin < rows_; begin += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, rows_ - begin);
      for (int64_t g = 0; g < groups_; ++g) {
        for (int64_t i = 0; i < count; ++i)
          decode_group(expert, begin + i, g, codes, scales,
                       [&](size_t column, uint16_t bf16) { tile[column][static_cast<size_t>(i)] = bf16; });
        for (int64_t c = 0; c < kGroup; ++c)
          std::memcpy(out.data() + 2 * ((g * kGroup + c) * rows_ + begin),
                      tile[static_cast<size_t>(c)].data(), static_cast<size_t>(2 * count));
      }
    }
  }

  template <class Put>
  void decode_group(int64_t expert, int64_t row, int64_t g, const std::vector<std::byte>& codes,
                    const std::vector<std::byte>& scales, const Put& put) const {
    static const Bf16OfCodes& table = bf16_of_codes();
    const auto group = static_cast<size_t>(row * groups_ + g);
    const auto scale = std::to_integer<size_t>(scales[group]);
    unsigned largest = 0;
    for (size_t i = 0; i < kGroupBytes; ++i) {
      const auto two = std::to_integer<unsigned>(codes[group * kGroupBytes + i]);
      const uint16_t low = table[scale][two & 15], high = table[scale][two >> 4];
      largest = std::max({largest, low & 0x7FFFu, high & 0x7FFFu});
      put(2 * i, low);
      put(2 * i + 1, high);
    }
    if (largest >= 0x7F80u)
      base::fail("{}: tensor {}: a code of the block at {} times its scale 2^{} is too large for a bfloat16",
                 codes_.file->path(), shown(codes_.tensor->name), shape_text(std::array{expert, row, g}),
                 static_cast<int>(scale) - 127);
  }

  const StoredTensor codes_, scales_;
  const int64_t rows_, groups_;
};

}  // namespace

std::unique_ptr<BlockTensor> make_mxfp4_tensor(const StoredTensor& codes, const StoredTensor& scales,
                                               const std::string& name) {
  const TensorInfo &c = *codes.tensor, &s = *scales.tensor;
  if (c.type != ElementType::U8 || c.shape.size() != 4 || c.shape[3] != kGroupBytes)
    base::fail("{}: tensor {} is {} {}; needed are codes of mxfp4, U8 [experts, rows, groups, {}]",
               codes.file->path(), shown(c.name), name_of(c.type), shape_text(c.shape), kGroupBytes);
  const std::vector<int64_t> needed(c.shape.begin(), c.shape.end() - 1);
  if (s.type != ElementType::U8 || s.shape != needed)
    base::fail("{}: tensor {} is {} {}; needed is U8 {}, a scale for each {} bytes of {}",
               scales.file->path(), shown(s.name), name_of(s.type), shape_text(s.shape), shape_text(needed),
               kGroupBytes, shown(c.name));
  return std::make_unique<Mxfp4Tensor>(codes, scales, name);
}

}  // namespace pleat::safetensors
