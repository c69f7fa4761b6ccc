#include "exchange/parameter_stream.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "base/error.h"
#include "safetensors/convert.h"
#include "tensor/halves.h"

namespace pleat::exchange {

namespace {

using family::Piece;

// Elements read at a time where a piece need not be whole.
constexpr int64_t kElementsAtOnce = int64_t{1} << 21;

template <class T>
using NumberSink = std::function<void(std::span<const T>)>;

// Of the values of one expert, or of all of a parameter without experts.
int64_t slab_size(const model::Parameter& p) {
  int64_t size = 1;
  for (size_t d = p.parameter_class == model::ParameterClass::Experts ? 1 : 0; d < p.shape.size(); ++d)
    size *= p.shape[d];
  return size;
}

int64_t size_of_shape(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (const int64_t d : shape) size *= d;
  return size;
}

// Where the elements of a piece lie one after the other in their parameter; nothing where they do not.
std::optional<int64_t> place_in_parameter(const Piece& piece, const model::Parameter& p) {
  if (piece.layout != family::Layout::Same) return std::nullopt;
  const bool experts = p.parameter_class == model::ParameterClass::Experts;
  const size_t first = experts ? 1 : 0;
  if (experts && piece.expert < 0 && (piece.begin != 0 || piece.size != p.shape[first])) return std::nullopt;
  const int64_t rows = p.shape[first], columns = rows == 0 ? 0 : slab_size(p) / rows;
  return ((experts && piece.expert >= 0 ? piece.expert : 0) * rows + piece.begin) * columns;
}

struct PlacedPiece {
  const Piece* piece;
  int64_t begin, count;  // elements of the parameter
};

// In the order of the parameter; empty where the pieces are no runs that fill it one after the other.
std::vector<PlacedPiece> in_order(const std::vector<Piece>& pieces, const model::Parameter& p) {
  std::vector<PlacedPiece> out;
  for (const Piece& piece : pieces) {
    const std::optional<int64_t> begin = place_in_parameter(piece, p);
    if (!begin) return {};
    out.push_back({&piece, *begin, size_of_shape(piece.shape)});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  int64_t end = 0;
  for (const PlacedPiece& placed : out) {
    if (placed.begin != end) return {};
    end += placed.count;
  }
  if (end != model::num_elements(p)) return {};
  return out;
}

// A number that is none spreads to the whole model, or waits in a row nothing has used yet.
template <class T>
void refuse_non_finite(const safetensors::ModelFolder& folder, const safetensors::TensorInfo& info,
                       std::span<const T> numbers) {
  const auto bad = std::find_if(numbers.begin(), numbers.end(), [](T x) { return !std::isfinite(x); });
  if (bad == numbers.end()) return;
  const int64_t count = std::count_if(numbers.begin(), numbers.end(), [](T x) { return !std::isfinite(x); });
  std::vector<int64_t> index(info.shape.size());
  int64_t left = bad - numbers.begin();
  for (size_t d = info.shape.size(); d-- > 0; left /= info.shape[d]) index[d] = left % info.shape[d];
  base::fail(
      "{}: tensor '{}' holds {} at {} ({} of its {} elements are not finite); finite weights are needed",
      folder.path(), info.name, static_cast<double>(*bad), safetensors::shape_text(index), count,
      numbers.size());
}

template <class T>
[[noreturn]] void fail_not_finite(const safetensors::ModelFolder& folder, const std::string& name) {
  const safetensors::TensorInfo& info = folder.at(name);
  std::vector<std::byte> raw(static_cast<size_t>(info.num_bytes()));
  folder.read(name, raw);
  std::vector<T> numbers(static_cast<size_t>(info.num_elements()));
  safetensors::decode(info.type, raw, std::span<T>(numbers));
  refuse_non_finite<T>(folder, info, numbers);
  base::fail_with(base::ExitCode::Storage, "{}: tensor '{}' changed while it was read", folder.path(), name);
}

template <class Bits>
bool has_exponent(std::span<const std::byte> raw, Bits exponent) {
  bool found = false;
  for (size_t i = 0; i < raw.size() / sizeof(Bits); ++i) {
    Bits bits;
    std::memcpy(&bits, raw.data() + i * sizeof bits, sizeof bits);
    found |= (bits & exponent) == exponent;
  }
  return found;
}

// Of BF16, F32 and F64, as they lie there.
bool all_finite(safetensors::ElementType type, std::span<const std::byte> raw) {
  if (type == safetensors::ElementType::BF16) return !has_exponent<uint16_t>(raw, 0x7F80);
  if (type == safetensors::ElementType::F32) return !has_exponent<uint32_t>(raw, 0x7F800000);
  return !has_exponent<uint64_t>(raw, 0x7FF0000000000000);
}

// Elements [begin, begin + count) of a tensor as numbers; finite ones.
template <class T>
void read_numbers(const safetensors::ModelFolder& folder, const std::string& name, int64_t begin,
                  std::vector<std::byte>& raw, std::span<T> out) {
  const safetensors::ElementType type = folder.at(name).type;
  const int64_t size = safetensors::size_of(type);
  raw.resize(out.size() * static_cast<size_t>(size));
  folder.read(name, begin * size, raw);
  safetensors::decode(type, raw, out);
  if (!std::all_of(out.begin(), out.end(), [](T x) { return std::isfinite(x); }))
    fail_not_finite<T>(folder, name);
}

// The parameter's numbers from element `first` on, in its order. Memory: a few MiB; where a tensor holds them in
// another order, one expert of it, or the parameter and the tensor.
template <class T>
void read_in_order(const safetensors::ModelFolder& folder, const model::Parameter& p,
                   const std::vector<Piece>& pieces, int64_t first, const NumberSink<T>& sink) {
  std::vector<std::byte> raw;
  std::vector<T> numbers, whole;
  const std::vector<PlacedPiece> placed = in_order(pieces, p);
  for (const PlacedPiece& run : placed)
    for (int64_t at = std::max<int64_t>(first - run.begin, 0); at < run.count; at += kElementsAtOnce) {
      numbers.resize(static_cast<size_t>(std::min(kElementsAtOnce, run.count - at)));
      read_numbers<T>(folder, run.piece->name, at, raw, numbers);
      sink(numbers);
    }
  if (!placed.empty()) return;
  model::Parameter slab = p;
  int64_t num_slabs = 1;
  if (p.parameter_class == model::ParameterClass::Experts &&
      std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.expert < 0; })) {
    num_slabs = p.shape[0];
    slab.shape[0] = 1;
  }
  const int64_t size = num_slabs == 1 ? model::num_elements(p) : slab_size(p);
  for (int64_t i = first / std::max<int64_t>(size, 1); i < num_slabs; ++i) {
    whole.assign(static_cast<size_t>(size), T{});
    for (Piece piece : pieces) {
      const int64_t count = size_of_shape(piece.shape) / num_slabs;
      if (num_slabs > 1) piece.shape[0] = 1;
      numbers.resize(static_cast<size_t>(count));
      read_numbers<T>(folder, piece.name, i * count, raw, numbers);
      family::piece_into_parameter(piece, slab, numbers.data(), whole.data());
    }
    sink(std::span<const T>(whole).subspan(static_cast<size_t>(std::max<int64_t>(first - i * size, 0))));
  }
}

bool is_of_type(const safetensors::ModelFolder& folder, const std::vector<Piece>& pieces,
                safetensors::ElementType type) {
  return std::all_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return folder.at(piece.name).type == type; });
}

template <class T>
void read_bias(const safetensors::ModelFolder& folder, const std::string& name, std::span<T> out) {
  std::vector<std::byte> raw;
  read_numbers<T>(folder, name, 0, raw, out);
}

}  // namespace

tensor::Dtype stored_type(const safetensors::ModelFolder& folder, const std::vector<family::Piece>& pieces,
                          tensor::Dtype run) {
  if (run == tensor::Dtype::BF16 || is_of_type(folder, pieces, safetensors::ElementType::BF16))
    return tensor::Dtype::BF16;
  const bool has_double = std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    return folder.at(piece.name).type == safetensors::ElementType::F64;
  });
  return run == tensor::Dtype::F64 && has_double ? tensor::Dtype::F64 : tensor::Dtype::F32;
}

bool leaves_no_rest(const safetensors::ModelFolder& folder, const std::vector<family::Piece>& pieces) {
  return is_of_type(folder, pieces, safetensors::ElementType::BF16);
}

void stream_parameter(const safetensors::ModelFolder& folder, const model::Parameter& p,
                      const std::vector<family::Piece>& pieces, tensor::Dtype as, int64_t begin,
                      const checkpoint::Sink& sink) {
  const int64_t size = tensor::size_of(as), first = begin / size;
  // The first bytes may be of an element that has been taken in part.
  size_t skip = static_cast<size_t>(begin % size);
  const auto hand_over = [&](std::span<const std::byte> bytes) {
    sink(bytes.subspan(skip));
    skip = 0;
  };
  const std::vector<PlacedPiece> placed = in_order(pieces, p);
  if (!placed.empty() && tensor::is_float(as) &&
      is_of_type(folder, pieces, safetensors::element_type_of(as))) {
    std::vector<std::byte> raw;
    for (const PlacedPiece& run : placed)
      for (int64_t at = std::max<int64_t>(first - run.begin, 0); at < run.count; at += kElementsAtOnce) {
        raw.resize(static_cast<size_t>(std::min(kElementsAtOnce, run.count - at) * size));
        folder.read(run.piece->name, at * size, raw);
        if (!all_finite(safetensors::element_type_of(as), raw))
          fail_not_finite<double>(folder, run.piece->name);
        hand_over(raw);
      }
    return;
  }
  if (as == tensor::Dtype::F64)
    return read_in_order<double>(folder, p, pieces, first,
                                 [&](std::span<const double> numbers) { hand_over(std::as_bytes(numbers)); });
  std::vector<uint16_t> halves;
  read_in_order<float>(folder, p, pieces, first, [&](std::span<const float> numbers) {
    if (as == tensor::Dtype::F32) return hand_over(std::as_bytes(numbers));
    PLEAT_CHECK(as == tensor::Dtype::BF16 || as == tensor::Dtype::I16);
    halves.resize(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const tensor::Halves split = tensor::split(numbers[i]);
      halves[i] = as == tensor::Dtype::BF16 ? split.high : static_cast<uint16_t>(split.rest);
    }
    hand_over(std::as_bytes(std::span<const uint16_t>(halves)));
  });
}

void stream_correction_bias(const safetensors::ModelFolder& folder, const std::string& name, int64_t begin,
                            const checkpoint::Sink& sink) {
  std::vector<float> biases(static_cast<size_t>(folder.at(name).num_elements()));
  read_bias<float>(folder, name, biases);
  sink(std::as_bytes(std::span<const float>(biases)).subspan(static_cast<size_t>(begin)));
}

namespace {

// As many bytes of a parameter as `out` has elements, as numbers.
template <class T>
void read_stored(const ParameterStore& store, const std::string& name, int64_t begin,
                 std::vector<std::byte>& raw, std::span<T> out) {
  const tensor::Dtype dtype = store.dtype(name);
  const int64_t size = tensor::size_of(dtype);
  raw.resize(out.size() * static_cast<size_t>(size));
  store.read(name, begin * size, raw);
  safetensors::decode(safetensors::element_type_of(dtype), raw, out);
}

template <class T>
void stream_numbers(const NamedTensor& tensor, const std::vector<model::Parameter>& table,
                    const ParameterStore& store, const checkpoint::Sink& sink) {
  const safetensors::ElementType type = tensor.spec.type;
  std::vector<std::byte> raw, encoded;
  std::vector<T> numbers, part;
  const auto hand_over = [&] {
    encoded.resize(numbers.size() * static_cast<size_t>(safetensors::size_of(type)));
    safetensors::encode(type, std::span<const T>(numbers), encoded);
    sink(encoded);
  };
  const auto& [first_idx, first_piece] = tensor.parts.front();
  const int64_t size = size_of_shape(tensor.spec.shape);
  if (const auto begin = place_in_parameter(first_piece, table[first_idx]);
      begin && tensor.parts.size() == 1) {
    const model::Parameter& p = table[first_idx];
    const tensor::Dtype stored = store.dtype(p.name);
    for (int64_t at = 0; at < size; at += kElementsAtOnce) {
      const auto count = static_cast<size_t>(std::min(kElementsAtOnce, size - at));
      if (safetensors::element_type_of(stored) == type) {
        raw.resize(count * static_cast<size_t>(tensor::size_of(stored)));
        store.read(p.name, (*begin + at) * tensor::size_of(stored), raw);
        sink(raw);
        continue;
      }
      numbers.resize(count);
      read_stored<T>(store, p.name, *begin + at, raw, numbers);
      hand_over();
    }
    return;
  }
  const bool by_expert = std::all_of(tensor.parts.begin(), tensor.parts.end(), [&](const auto& it) {
    return it.second.expert < 0 && table[it.first].parameter_class == model::ParameterClass::Experts;
  });
  const int64_t num_slabs = by_expert ? table[first_idx].shape[0] : 1;
  for (int64_t i = 0; i < num_slabs; ++i) {
    numbers.assign(static_cast<size_t>(size / num_slabs), T{});
    for (const auto& [p_idx, whole_piece] : tensor.parts) {
      model::Parameter slab = table[p_idx];
      Piece piece = whole_piece;
      if (by_expert) slab.shape[0] = piece.shape[0] = 1;
      const int64_t count = model::num_elements(slab);
      part.resize(static_cast<size_t>(count));
      read_stored<T>(store, slab.name, i * count, raw, part);
      family::parameter_into_piece(piece, slab, part.data(), numbers.data());
    }
    hand_over();
  }
}

}  // namespace

void stream_tensor(const NamedTensor& tensor, const std::vector<model::Parameter>& table,
                   const ParameterStore& store, const checkpoint::Sink& sink) {
  if (tensor.correction_bias_layer >= 0) {
    std::vector<std::byte> bytes(static_cast<size_t>(size_of_shape(tensor.spec.shape)) * sizeof(float));
    store.read(fmt::format("layers.{}.router.expert_bias", tensor.correction_bias_layer), 0, bytes);
    return sink(bytes);
  }
  const bool wide = std::any_of(tensor.parts.begin(), tensor.parts.end(), [&](const auto& part) {
    return store.dtype(table[part.first].name) == tensor::Dtype::F64;
  });
  if (wide)
    stream_numbers<double>(tensor, table, store, sink);
  else
    stream_numbers<float>(tensor, table, store, sink);
}

}  // namespace pleat::exchange
