#include "data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>

#include "base/counted.h"
#include "base/error.h"
#include "data/chat/chat_line.h"
#include "data/chat/open_chat.h"
#include "data/dataset_info.h"
#include "data/indexed_writer.h"
#include "data/mapped_file.h"
#include "data/ordered_workers.h"
#include "data/prepare_split.h"

namespace pleat::data {
namespace {

// Enough work to be worth a hand-over between threads.
constexpr size_t kBatchBytes = size_t{1} << 19;
constexpr size_t kBatchParts = 2048;

enum Side : int { kTrain = 0, kValidation = 1 };

// A whole document, or a piece of one where the tokenizer can cut anywhere; for chat one line of JSONL.
struct Part {
  std::string text = {};
  std::string where = {};  // of a line
  size_t input = 0;        // of a conversation: which of the inputs it stands in
  std::optional<ChatForm> form = {};
  Side side = kTrain;
  bool ends_document = false;
  EncodedChat encoded = {.end_counts = true};
  int64_t num_bytes = 0;
};

struct Batch {
  std::vector<Part> parts = {};
  size_t num_bytes = 0;
  int64_t bytes_read = 0;  // of all inputs, when the batch was full
};

int64_t file_bytes(const std::string& path) {
  const OpenedFile opened = open_regular_file(path);
  ::close(opened.descriptor);
  return opened.size;
}

// One output dataset.
class Output {
 public:
  Output(const std::string& prefix, const TextTokenizer& tokenizer, bool loss_mask)
      : prefix_(prefix),
        loss_mask_(loss_mask),
        writer_(prefix, {.vocab_size = tokenizer.vocab_size(),
                         .end_of_document = tokenizer.end_of_document(),
                         .loss_mask = loss_mask}) {}

  void write(const Part& part) {
    num_text_bytes_ += part.num_bytes;
    document_tokens_ += part.encoded.tokens.size();
    const int64_t before = writer_.counts().num_loss_tokens;
    writer_.append(part.encoded.tokens,
                   std::span(part.encoded.loss_mask).first(loss_mask_ ? part.encoded.tokens.size() : 0));
    if (!part.ends_document) return;
    if (document_tokens_ == 0) {
      ++num_empty_;  // text of which nothing is left, such as blanks a normalizer drops
      return;
    }
    writer_.end_document(part.encoded.end_counts);
    num_unlearned_ += loss_mask_ && writer_.counts().num_loss_tokens == before;
    document_tokens_ = 0;
  }

  PreparedDataset finish(DatasetInfo info) {
    const auto counts = writer_.finish([&](const IndexedDatasetWriter::Counts& c) {
      info.num_documents = c.num_documents;
      info.num_tokens = c.num_tokens;
      info.num_bytes = num_text_bytes_;
      if (loss_mask_) info.num_loss_tokens = c.num_loss_tokens;
      return to_json(info);
    });
    return {prefix_, counts.num_documents, counts.num_tokens, num_text_bytes_, counts.num_loss_tokens};
  }

  const IndexedDatasetWriter::Counts& counts() const { return writer_.counts(); }
  int64_t num_empty() const { return num_empty_; }
  int64_t num_unlearned() const { return num_unlearned_; }

 private:
  std::string prefix_;
  bool loss_mask_;
  IndexedDatasetWriter writer_;
  size_t document_tokens_ = 0;
  int64_t num_text_bytes_ = 0, num_empty_ = 0, num_unlearned_ = 0;
};

// Turns what the inputs hold into parts, and parts into batches.
class Reader {
 public:
  Reader(const PrepareOptions& options, const TextTokenizer& tokenizer, const SplitRule& rule,
         std::function<void(Batch)> send)
      : options_(options), tokenizer_(tokenizer), rule_(rule), send_(std::move(send)) {}

  void read_texts() {
    for_each_document(options_, {.on_bytes = [&](int64_t bytes) { bytes_read_ = bytes; },
                                 .on_piece = [&](std::string_view text) { piece(text); },
                                 .on_end =
                                     [&](bool is_empty) {
                                       num_empty_ += is_empty;
                                       num_documents_ += !is_empty;
                                       end_document(kTrain);
                                       end_document(kValidation);
                                       return true;
                                     }});
  }

  void read_chats() {
    int64_t bytes_before = 0;
    for (size_t input = 0; input < options_.inputs.size(); ++input) {
      const std::string& path = options_.inputs[input];
      if (format_of(path, options_.format) != InputFormat::Jsonl)
        base::fail("{}: conversations are read from JSONL; a .jsonl file is needed", path);
      LineSource lines(path);
      std::string_view line;
      for (int64_t number = 0; lines.next(line, number);) {
        bytes_read_ = bytes_before + lines.bytes_read();
        Part part{.text = std::string(line),
                  .where = fmt::format("{}:{}", path, number),
                  .input = input,
                  .ends_document = true};
        part.side = options_.split && rule_.is_validation(num_documents_) ? kValidation : kTrain;
        ++num_documents_;
        add(std::move(part));
      }
      bytes_before += lines.bytes_read();
    }
  }

  void flush() {
    if (batch_.parts.empty()) return;
    batch_.bytes_read = bytes_read_;
    send_(std::exchange(batch_, {}));
  }

  int64_t num_documents() const { return num_documents_; }
  int64_t num_empty() const { return num_empty_; }
  int64_t text_bytes() const { return text_bytes_; }

 private:
  void piece(std::string_view text) {
    const int64_t begin = text_bytes_;
    text_bytes_ += static_cast<int64_t>(text.size());
    if (!options_.split) return add_text(kTrain, text);
    if (!rule_.by_bytes) return add_text(rule_.is_validation(num_documents_) ? kValidation : kTrain, text);
    const size_t cut = past_cut_ ? 0 : cut_in(text, begin, rule_.train_bytes);
    add_text(kTrain, text.substr(0, cut));
    if (cut == text.size()) return;
    end_document(kTrain);
    past_cut_ = true;
    add_text(kValidation, text.substr(cut));
  }

  void add_text(Side side, std::string_view text) {
    if (text.empty()) return;
    open_[side] = true;
    if (tokenizer_.can_cut_anywhere()) return add({.text = std::string(text), .side = side});
    std::string& whole = whole_[side];
    if (static_cast<int64_t>(text.size()) > options_.max_document_bytes - static_cast<int64_t>(whole.size()))
      base::fail(
          "document {} is longer than {} bytes, and tokenizer {} needs a document at once; split the text",
          num_documents_, options_.max_document_bytes, tokenizer_.name());
    whole.append(text);
  }

  void end_document(Side side) {
    if (!open_[side]) return;
    add({.text = std::exchange(whole_[side], {}), .side = side, .ends_document = true});
    open_[side] = false;
  }

  void add(Part part) {
    batch_.num_bytes += part.text.size();
    batch_.parts.push_back(std::move(part));
    if (batch_.num_bytes >= kBatchBytes || batch_.parts.size() >= kBatchParts) flush();
  }

  const PrepareOptions& options_;
  const TextTokenizer& tokenizer_;
  const SplitRule& rule_;
  std::function<void(Batch)> send_;
  Batch batch_;
  std::array<std::string, 2> whole_;
  std::array<bool, 2> open_ = {};
  bool past_cut_ = false;
  int64_t bytes_read_ = 0, num_documents_ = 0, num_empty_ = 0, text_bytes_ = 0;
};

void encode_part(Part& part, const TextTokenizer& tokenizer, const ConversationEncoder* chat) {
  if (chat != nullptr) {
    const Conversation conversation = conversation_from_json(part.text, part.where);
    for (const ChatMessage& message : conversation.messages)
      part.num_bytes += static_cast<int64_t>(message.content.size());
    part.form = conversation.form;
    part.encoded = chat->encode(conversation, part.where);
  } else {
    part.num_bytes = static_cast<int64_t>(part.text.size());
    if (!part.text.empty()) part.encoded.tokens = tokenizer.encode(part.text);
  }
  part.text = {};
}

// One form per file: a line in another one was hardly meant.
class Forms {
 public:
  explicit Forms(size_t num_inputs) : of_(num_inputs) {}

  void see(const Part& part) {
    if (!part.form) return;
    std::optional<ChatForm>& form = of_[part.input];
    if (!form) form = part.form;
    if (*form != *part.form)
      base::fail("{}: the line is in {} form, but the file began in {} form; a file for each is needed",
                 part.where, chat_form_name(*part.form), chat_form_name(*form));
  }
  const std::vector<std::optional<ChatForm>>& of_inputs() const { return of_; }

 private:
  std::vector<std::optional<ChatForm>> of_;
};

DatasetInfo describe(const PrepareOptions& options, const TextTokenizer& tokenizer,
                     const std::vector<int64_t>& sizes) {
  DatasetInfo info;
  info.tokenizer = options.tokenizer_path.empty() ? tokenizer.name() : options.tokenizer_path;
  info.tokenizer_kind = tokenizer.kind();
  info.tokenizer_sha256 = tokenizer.tokenizer_hash();
  info.vocab_size = tokenizer.vocab_size();
  info.end_of_document = tokenizer.end_of_document();
  if (options.chat) info.chat_template = options.chat->name;
  for (size_t i = 0; i < sizes.size(); ++i)
    info.sources.push_back(
        {std::filesystem::absolute(options.inputs[i]).lexically_normal().string(), sizes[i]});
  return info;
}

}  // namespace

PrepareResult prepare(const PrepareOptions& options, const TextTokenizer& tokenizer) {
  if (options.inputs.empty())
    base::fail("no input file was given; at least one text or JSONL file is needed");
  if (options.output_prefix.empty()) base::fail("no output prefix was given");
  if (options.num_threads < 0) base::fail("{} threads; 1 or more, or 0 for all cores", options.num_threads);
  PrepareProgress progress;
  std::vector<int64_t> sizes;
  for (const std::string& path : options.inputs) progress.bytes_total += sizes.emplace_back(file_bytes(path));

  std::unique_ptr<ConversationEncoder> chat;
  if (options.chat) chat = open_chat(*options.chat, tokenizer);
  SplitRule rule;
  if (options.split) rule = choose_split(options);

  if (const auto folder = std::filesystem::path(options.output_prefix).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder);
  std::array<std::optional<Output>, 2> outputs;
  outputs[kTrain].emplace(options.output_prefix + (options.split ? "-train" : ""), tokenizer,
                          chat != nullptr);
  if (options.split)
    outputs[kValidation].emplace(options.output_prefix + "-validation", tokenizer, chat != nullptr);
  const auto report = [&](int64_t bytes_read) {
    progress.bytes_read = bytes_read;
    progress.num_documents = progress.num_tokens = 0;
    for (const auto& output : outputs)
      if (output) {
        progress.num_documents += output->counts().num_documents;
        progress.num_tokens += output->counts().num_tokens;
      }
    if (options.progress) options.progress(progress);
  };

  Forms forms(options.inputs.size());
  const int64_t all_cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  OrderedWorkers<Batch> workers(
      options.num_threads == 0 ? all_cores : options.num_threads,
      [&](Batch& batch) {
        for (Part& part : batch.parts) encode_part(part, tokenizer, chat.get());
      },
      [&](Batch& batch) {
        for (const Part& part : batch.parts) {
          forms.see(part);
          outputs[part.side]->write(part);
        }
        report(batch.bytes_read);
      });
  bool encoding_failed = false;
  Reader reader(options, tokenizer, rule, [&](Batch batch) {
    encoding_failed = true;
    workers.add(std::move(batch));
    encoding_failed = false;
  });
  std::exception_ptr reading_failed;
  try {
    chat ? reader.read_chats() : reader.read_texts();
  } catch (const base::Error&) {
    reading_failed = std::current_exception();
  }
  // What was read before a bad place is looked at first: its faults come first.
  if (!encoding_failed) {
    reader.flush();
    workers.finish();
  }
  if (reading_failed) std::rethrow_exception(reading_failed);
  report(progress.bytes_total);

  PrepareResult result;
  result.cut_by_bytes = rule.by_bytes;
  result.forms = forms.of_inputs();
  result.num_empty_documents = reader.num_empty();
  for (const auto& output : outputs)
    if (output) {
      result.num_empty_documents += output->num_empty();
      result.num_unlearned += output->num_unlearned();
    }
  if (progress.num_documents == 0)
    base::fail("{}: the inputs hold no text (all documents are empty)", options.inputs.front());
  if (options.split &&
      (outputs[kTrain]->counts().num_documents == 0 || outputs[kValidation]->counts().num_documents == 0))
    base::fail("split {} of {} leaves one side empty; more text or another split is needed", *options.split,
               base::counted(reader.num_documents(), "document"));
  const DatasetInfo info = describe(options, tokenizer, sizes);
  result.train = outputs[kTrain]->finish(info);
  if (options.split) result.validation = outputs[kValidation]->finish(info);
  return result;
}

}  // namespace pleat::data
