#include "data/inspect.h"

namespace pleat::data {
namespace {

// Windows of the stream, whose last label is one token further.
void find_stream_runs(const IndexedDataset& dataset, const Sampler& sampler, InspectedSample& out) {
  const int64_t length = sampler.options().seq_len;
  out.first_token = out.window * length;
  out.continues = dataset.document_begin(dataset.document_of(out.first_token)) < out.first_token;
  for (int64_t at = 0; at <= length; ++at) {
    const auto j = static_cast<size_t>(at);
    const int64_t document = dataset.document_of(out.first_token + at);
    const bool counts = at > 0 && out.sample.loss_mask[j - 1] != 0;
    const bool new_document = out.runs.empty() || out.runs.back().document != document;
    out.num_loss_tokens += counts;
    // The last label is no input: where it begins a document no position says so.
    const bool starts =
        at < length ? out.sample.positions[j] == 0 : new_document && sampler.options().isolate_documents;
    out.num_documents += new_document;
    if (new_document || out.runs.back().counts != counts) {
      const int64_t before = at == 0 ? 0 : out.runs.back().position + (at - out.runs.back().begin);
      out.runs.push_back(
          {.begin = at, .document = document, .position = starts ? 0 : before, .counts = counts});
    }
    out.runs.back().end = at + 1;
  }
}

void find_whole_runs(const IndexedDataset& dataset, const WholeDocuments& whole, InspectedSample& out) {
  int64_t at = 0;
  for (const uint32_t document : whole.documents(out.window)) {
    const int64_t first = dataset.document_begin(document),
                  length = dataset.document_begin(document + 1) - first;
    if (out.num_documents++ == 0) out.first_token = first;
    for (int64_t i = 0; i < length; ++i, ++at) {
      const bool counts = i > 0 && out.sample.loss_mask[static_cast<size_t>(at) - 1] != 0;
      out.num_loss_tokens += counts;
      if (i == 0 || out.runs.back().counts != counts)
        out.runs.push_back({.begin = at,
                            .document = document,
                            .position = out.sample.positions[static_cast<size_t>(at)],
                            .counts = counts});
      out.runs.back().end = at + 1;
    }
  }
  out.num_padding = static_cast<int64_t>(out.sample.tokens.size()) - at;
}

}  // namespace

InspectedSample inspect_sample(const IndexedDataset& dataset, const Sampler& sampler,
                               const TextTokenizer& tokenizer, const DataPosition& position) {
  InspectedSample out(sampler.options().seq_len);
  sampler.read(position, out.sample);
  out.window = sampler.window_at(position);
  if (const WholeDocuments* whole = sampler.whole_documents())
    find_whole_runs(dataset, *whole, out);
  else
    find_stream_runs(dataset, sampler, out);
  std::vector<int32_t> tokens(out.sample.tokens.begin(), out.sample.tokens.end());
  tokens.push_back(out.sample.labels.back());
  for (SampleRun& run : out.runs)
    run.text = tokenizer.decode(
        std::span(tokens).subspan(static_cast<size_t>(run.begin), static_cast<size_t>(run.end - run.begin)),
        DecodeOptions{});
  return out;
}

}  // namespace pleat::data
