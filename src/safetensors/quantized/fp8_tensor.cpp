// fp8 of block_tensor.h.
#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "safetensors/convert.h"
#include "safetensors/json_text.h"
#include "safetensors/quantized/block_tensor.h"
#include "tensor/code_values.h"

namespace pleat::safetensors {

namespace {

constexpr int64_t kCodesAtOnce = 1 << 20;

class Fp8Tensor final : public BlockTensor {
 public:
  Fp8Tensor(const StoredTensor& codes, const StoredTensor& scales, const Scheme& scheme)
      : BlockTensor({codes.tensor->name, ElementType::F32, codes.tensor->shape},
                    row_count(codes.tensor->shape), codes.file->path()),
        codes_(codes),
        scales_(scales),
        block_rows_(scheme.block_rows),
        block_columns_(scheme.block_columns),
        rows_(codes.tensor->shape[codes.tensor->shape.size() - 2]),
        columns_(codes.tensor->shape.back()),
        scale_rows_(base::ceil_div(rows_, block_rows_)),
        scale_columns_(base::ceil_div(columns_, block_columns_)) {}

  static int64_t row_count(const std::vector<int64_t>& shape) {
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < shape.size(); ++d)
      rows = base::checked_mul(rows, shape[d], "rows of a tensor");
    return rows;
  }

 private:
  void decode(int64_t first_row, int64_t num_rows, std::span<std::byte> out) const override {
    const int64_t at_once = std::max<int64_t>(1, kCodesAtOnce / columns_);
    std::vector<std::byte> codes;
    std::vector<float> numbers(static_cast<size_t>(columns_));
    for (int64_t begin = first_row; begin < first_row + num_rows; begin += at_once) {
      const int64_t end = std::min(begin + at_once, first_row + num_rows);
      codes.resize(static_cast<size_t>((end - begin) * columns_));
      codes_.file->read(*codes_.tensor, begin * columns_, codes);
      const int64_t first_scale_row = scale_row(begin);
      const std::vector<float> scales = read_scales(first_scale_row, scale_row(end - 1) + 1);
      for (int64_t row = begin; row < end; ++row) {
        decode_row(row, codes.data() + (row - begin) * columns_,
                   scales.data() + (scale_row(row) - first_scale_row) * scale_columns_, numbers);
        encode(ElementType::F32, std::span<const float>(numbers),
               out.subspan(static_cast<size_t>((row - first_row) * unit_bytes()),
                           static_cast<size_t>(unit_bytes())));
      }
    }
  }

  // Among the scales of all matrices.
  int64_t scale_row(int64_t row) const { return row / rows_ * scale_rows_ + row % rows_ / block_rows_; }

  std::vector<float> read_scales(int64_t first_row, int64_t end_row) const {
    const TensorInfo& info = *scales_.tensor;
    const int64_t size = size_of(info.type);
    std::vector<float> out(static_cast<size_t>((end_row - first_row) * scale_columns_));
    std::vector<std::byte> raw(out.size() * static_cast<size_t>(size));
    scales_.file->read(info, first_row * scale_columns_ * size, raw);
    safetensors::decode(info.type, raw, std::span(out));
    for (size_t i = 0; i < out.size(); ++i)
      if (!std::isfinite(out[i]))
        base::fail("{}: tensor {} holds {} as scale {} of {}; finite scales are needed", scales_.file->path(),
                   shown(info.name), out[i], first_row * scale_columns_ + static_cast<int64_t>(i),
                   shape_text(info.shape));
    return out;
  }

  void decode_row(int64_t row, const std::byte* codes, const float* scales, std::vector<float>& out) const {
    bool finite = true;
    for (int64_t begin = 0, block = 0; begin < columns_; begin += block_columns_, ++block) {
      const int64_t end = std::min(begin + block_columns_, columns_);
      const float scale = scales[block];
      for (int64_t c = begin; c < end; ++c) {
        const float x = tensor::kE4m3Values[std::to_integer<size_t>(codes[c])] * scale;
        out[static_cast<size_t>(c)] = x;
        finite &= std::isfinite(x);
      }
    }
    if (!finite) refuse(row, codes, out);
  }

  [[noreturn]] void refuse(int64_t row, const std::byte* codes, const std::vector<float>& numbers) const {
    const auto bad = std::find_if(numbers.begin(), numbers.end(), [](float x) { return !std::isfinite(x); });
    const int64_t column = bad - numbers.begin();
    std::vector<int64_t> index = {row % rows_, column};
    if (info().shape.size() > 2) index.insert(index.begin(), row / rows_);
    if (std::isnan(tensor::kE4m3Values[std::to_integer<size_t>(codes[column])]))
      base::fail("{}: tensor {} holds the code of NaN at {}; finite weights are needed", codes_.file->path(),
                 shown(info().name), shape_text(index));
    base::fail("{}: tensor {}: the code at {} times its scale is not finite as a float32",
               codes_.file->path(), shown(info().name), shape_text(index));
  }

  const StoredTensor codes_, scales_;
  const int64_t block_rows_, block_columns_, rows_, columns_, scale_rows_, scale_columns_;
};

}  // namespace

std::unique_ptr<BlockTensor> make_fp8_tensor(const StoredTensor& codes, const StoredTensor& scales,
                                             const Scheme& scheme) {
  const std::vector<int64_t>& shape = codes.tensor->shape;
  if (shape.size() < 2 || shape.size() > 3)
    base::fail("{}: tensor {} has codes of shape {}; needed is a matrix, or one for each expert",
               codes.file->path(), shown(codes.tensor->name), shape_text(shape));
  std::vector<int64_t> needed = shape;
  needed[shape.size() - 2] = base::ceil_div(needed[shape.size() - 2], scheme.block_rows);
  needed.back() = base::ceil_div(needed.back(), scheme.block_columns);
  const TensorInfo& s = *scales.tensor;
  if (s.shape != needed || (s.type != ElementType::F32 && s.type != ElementType::BF16))
    base::fail(
        "{}: tensor {} is {} {}; needed is F32 or BF16 {}, a scale for each {} x {} block of the codes, "
        "which are "
        "{}",
        scales.file->path(), shown(s.name), name_of(s.type), shape_text(s.shape), shape_text(needed),
        scheme.block_rows, scheme.block_columns, shape_text(shape));
  return std::make_unique<Fp8Tensor>(codes, scales, scheme);
}

}  // namespace pleat::safetensors
