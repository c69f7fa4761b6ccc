#include "layout/pipeline_string.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/quote.h"

namespace pleat::layout {
namespace {

constexpr size_t kMostSymbols = size_t{1} << 20;
constexpr int kMostDepth = 16;

// Unrolls repeats into a plain row of symbols.
class Unroller {
 public:
  explicit Unroller(std::string_view text) : text_(text) {}

  std::string run() {
    std::string out = sequence(0);
    if (at_ < text_.size()) complain(at_, "')' closes nothing");
    return out;
  }

 private:
  [[noreturn]] void complain(size_t at, const std::string& what) const {
    base::fail("parallel.pipeline_layout = {}: {} (position {})", config::quote(text_), what, at);
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == ',')) ++at_;
  }

  std::string sequence(int depth) {
    std::string out;
    for (skip(); at_ < text_.size() && text_[at_] != ')'; skip()) {
      const size_t begin = at_;
      std::string unit;
      const char c = text_[at_++];
      if (c == '(') {
        if (depth == kMostDepth) complain(begin, fmt::format("deeper than {} brackets", kMostDepth));
        unit = sequence(depth + 1);
        if (at_ == text_.size()) complain(begin, "'(' is not closed");
        ++at_;
        if (unit.empty()) complain(begin, "brackets around nothing");
      } else if (c == 'E' || c == 't' || c == 'm' || c == 'L' || c == '|') {
        unit = c;
      } else if (c == '*') {
        complain(begin, "'*' repeats nothing");
      } else {
        complain(begin, fmt::format("'{}' is not known; needed E, t, m, L, |, (, ) or *",
                                    config::printable({&c, 1})));
      }
      const int64_t times = repeat();
      if (unit.size() * static_cast<size_t>(times) > kMostSymbols - out.size())
        complain(begin, fmt::format("more than {} items", kMostSymbols));
      for (int64_t i = 0; i < times; ++i) out += unit;
    }
    return out;
  }

  int64_t repeat() {
    skip();
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    const size_t begin = at_++;
    skip();
    int64_t times = 0;
    size_t num_digits = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && num_digits < 8;
         ++at_, ++num_digits)
      times = times * 10 + (text_[at_] - '0');
    if (times < 1 || times > static_cast<int64_t>(kMostSymbols))
      complain(begin, fmt::format("'*' needs a number from 1 to {}", kMostSymbols));
    return times;
  }

  std::string_view text_;
  size_t at_ = 0;
};

char symbol_of(Part part) { return "EtmL"[static_cast<size_t>(part)]; }

std::vector<Chunk> cut(const std::string& symbols) {
  std::vector<Chunk> chunks(1);
  int64_t next_layer = 0, next_prediction = 0;
  for (const char c : symbols) {
    switch (c) {
      case '|':
        chunks.emplace_back();
        break;
      case 'E':
        chunks.back().push_back({Part::Embedding, 0});
        break;
      case 't':
        chunks.back().push_back({Part::Layer, next_layer++});
        break;
      case 'm':
        chunks.back().push_back({Part::Prediction, next_prediction++});
        break;
      default:
        chunks.back().push_back({Part::Loss, 0});
    }
  }
  return chunks;
}

// "as item 2 of 3 in chunk 1 of 2", of a part that is there.
std::string place_of(const std::vector<Chunk>& chunks, Part part) {
  for (size_t i = 0; i < chunks.size(); ++i)
    for (size_t k = 0; k < chunks[i].size(); ++k)
      if (chunks[i][k].part == part)
        return fmt::format("as item {} of {} in chunk {} of {}", k + 1, chunks[i].size(), i + 1,
                           chunks.size());
  return "nowhere";
}

// Throws unless the chunks are a model of `shape`; `where` begins the message.
void require_model(const std::vector<Chunk>& chunks, const PipelineShape& s, const std::string& where) {
  const int64_t num_chunks = static_cast<int64_t>(chunks.size());
  if (num_chunks != s.pp * s.vpp)
    base::fail("{}: {} chunks (one more than there are '|'), but pp x vpp = {} x {} = {} are needed", where,
               num_chunks, s.pp, s.vpp, s.pp * s.vpp);
  int64_t count[4] = {};
  int64_t prediction_chunk = -1;
  for (int64_t i = 0; i < num_chunks; ++i)
    for (const PipelineItem& item : chunks[static_cast<size_t>(i)]) {
      ++count[static_cast<size_t>(item.part)];
      if (item.part == Part::Layer && prediction_chunk >= 0)
        base::fail("{}: decoder layer {} comes after a prediction layer; every t stands before the first m",
                   where, item.index);
      if (item.part != Part::Prediction) continue;
      if (prediction_chunk >= 0 && prediction_chunk != i)
        base::fail("{}: prediction layers in chunks {} and {}; all m stand in one", where, prediction_chunk,
                   i);
      prediction_chunk = i;
    }
  if (count[0] != 1)
    base::fail("{}: {} times E; needed is one, as the first item of the first chunk", where, count[0]);
  if (chunks.front().empty() || chunks.front().front().part != Part::Embedding)
    base::fail("{}: E stands {}; its place is the first item of the first chunk", where,
               place_of(chunks, Part::Embedding));
  if (count[3] != 1)
    base::fail("{}: {} times L; needed is one, as the last item of the last chunk", where, count[3]);
  if (chunks.back().empty() || chunks.back().back().part != Part::Loss)
    base::fail("{}: L stands {}; its place is the last item of the last chunk", where,
               place_of(chunks, Part::Loss));
  if (count[1] != s.num_layers)
    base::fail("{}: {} decoder layers (t), but model.num_layers = {}", where, count[1], s.num_layers);
  if (count[2] != s.num_prediction_layers)
    base::fail("{}: {} prediction layers (m), but the model has {}", where, count[2],
               s.num_prediction_layers);
  if (prediction_chunk >= 0 && s.pp > 1 && prediction_chunk % s.pp == 0)
    base::fail("{}: prediction layers in chunk {}, which is on the first pipeline rank; they go on another",
               where, prediction_chunk);
}

// Layers spread over all chunks, the ends, which have the embedding and the loss, getting the fewest.
std::string spread_text(const PipelineShape& s) {
  const int64_t n = s.pp * s.vpp, base = s.num_layers / n;
  int64_t extra = s.num_layers % n;
  std::string symbols = "E";
  for (int64_t i = 0; i < n; ++i) {
    const bool more = extra > 0 && (i > 0 || n == 1);
    extra -= more;
    symbols += std::string(i > 0 ? "|" : "") + std::string(static_cast<size_t>(base + more), 't');
  }
  symbols += std::string(static_cast<size_t>(s.num_prediction_layers), 'm') + "L";
  std::string out;
  for (size_t i = 0; i < symbols.size();) {
    const size_t end = std::min(symbols.find_first_not_of(symbols[i], i), symbols.size());
    out += symbols[i] == '|' || end - i < 3 ? symbols.substr(i, end - i)
                                            : fmt::format("{}*{}", symbols[i], end - i);
    i = end;
  }
  return out;
}

std::string nearest_splits(const PipelineShape& s) {
  struct Split {
    double cost;
    int64_t pp, vpp;
  };
  const auto change = [](int64_t from, int64_t to) {
    return from == to ? 0 : 1 + std::abs(std::log2(double(to) / double(from)));
  };
  std::vector<Split> all;
  for (int64_t pp = 1; pp <= s.num_layers; ++pp)
    for (int64_t vpp = 1; pp * vpp <= s.num_layers && (pp > 1 || vpp == 1); ++vpp)
      if (s.num_layers % (pp * vpp) == 0) all.push_back({change(s.pp, pp) + change(s.vpp, vpp), pp, vpp});
  std::stable_sort(all.begin(), all.end(), [](const Split& a, const Split& b) { return a.cost < b.cost; });
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i)
    texts.push_back(fmt::format("pp={} vpp={}", all[i].pp, all[i].vpp));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

PipelineLayout PipelineLayout::parse(std::string_view text, const PipelineShape& shape) {
  std::vector<Chunk> chunks = cut(Unroller(text).run());
  require_model(chunks, shape, fmt::format("parallel.pipeline_layout = {}", config::quote(text)));
  return {shape, std::move(chunks)};
}

PipelineLayout PipelineLayout::even(const PipelineShape& s) {
  const int64_t n = s.pp * s.vpp;
  if (s.num_layers % n != 0) {
    const std::string example = spread_text(s);
    base::fail(
        "{} layers do not spread evenly over pp x vpp = {} x {} = {} chunks: {} / {} = {:.4g}.\nNearest that "
        "do: {}.\nOr say what each chunk holds: parallel.pipeline_layout = \"{}\"",
        s.num_layers, s.pp, s.vpp, n, s.num_layers, n, double(s.num_layers) / double(n), nearest_splits(s),
        example);
  }
  return parse(spread_text(s), s);
}

PipelineLayout PipelineLayout::make(std::string_view text, const PipelineShape& shape) {
  return text.empty() ? even(shape) : parse(text, shape);
}

const Chunk& PipelineLayout::chunk(int64_t chunk_idx) const {
  if (chunk_idx < 0 || chunk_idx >= num_chunks()) base::fail("chunk {} of {}", chunk_idx, num_chunks());
  return chunks_[static_cast<size_t>(chunk_idx)];
}

const Chunk& PipelineLayout::chunk(int64_t vpp_rank, int64_t pp_rank) const {
  if (pp_rank < 0 || pp_rank >= shape_.pp) base::fail("pipeline rank {} of {}", pp_rank, shape_.pp);
  return chunk(vpp_rank * shape_.pp + pp_rank);
}

ChunkPlace PipelineLayout::place_of_layer(int64_t layer) const {
  for (int64_t i = 0; i < num_chunks(); ++i)
    for (const PipelineItem& item : chunk(i))
      if (item.part == Part::Layer && item.index == layer) return {i / shape_.pp, i % shape_.pp};
  base::fail("layer {} of {}", layer, shape_.num_layers);
}

std::string PipelineLayout::text() const {
  std::string out;
  for (int64_t i = 0; i < num_chunks(); ++i) {
    if (i > 0) out += '|';
    const Chunk& items = chunk(i);
    for (size_t j = 0; j < items.size();) {
      size_t end = j;
      while (end < items.size() && items[end].part == items[j].part) ++end;
      out += symbol_of(items[j].part);
      if (end - j > 1) out += fmt::format("*{}", end - j);
      j = end;
    }
  }
  return out;
}

}  // namespace pleat::layout
