#include "data/inspect.h"

namespace pleat::data {

InspectedSample inspect_sample(const IndexedDataset& dataset, const Sampler& sampler,
                               const TextTokenizer& tokenizer, const DataPosition& position) {
  const int64_t length = sampler.options().seq_len;
  InspectedSample out(length);
  sampler.read(position, out.sample);
  out.window = sampler.window_at(position);
  out.first_token = out.window * length;
  out.continues = dataset.document_begin(dataset.document_of(out.first_token)) < out.first_token;
  std::vector<int32_t> tokens(out.sample.tokens.begin(), out.sample.tokens.end());
  tokens.push_back(out.sample.labels.back());
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
  for (SampleRun& run : out.runs)
    run.text = tokenizer.decode(
        std::span(tokens).subspan(static_cast<size_t>(run.begin), static_cast<size_t>(run.end - run.begin)),
        DecodeOptions{});
  return out;
}

}  // namespace pleat::data
