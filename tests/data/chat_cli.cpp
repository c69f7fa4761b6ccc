// What tools/chat_parity.py runs beside transformers. A line in: {"folder": ..., "now": ..., "messages": [...],
// "tools": [...]}; a line out: the rendered text, ids, mask and prompt, or the error. With "template" instead
// of "folder" that template is rendered with "variables".
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/chat/chat_line.h"
#include "data/chat/json_value.h"
#include "data/chat/tokenizer_chat.h"
#include "data/tokenizer/open_tokenizer.h"

namespace pleat::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

class Folders {
 public:
  const TokenizerChat& open(const std::string& folder, int64_t now) {
    Opened& opened = opened_[folder];
    if (!opened.chat) {
      opened.tokenizer = open_tokenizer(folder);
      opened.chat = std::make_unique<TokenizerChat>(*opened.tokenizer, TokenizerChatOptions{.now = now});
    }
    return *opened.chat;
  }

 private:
  struct Opened {
    std::unique_ptr<TextTokenizer> tokenizer;
    std::unique_ptr<TokenizerChat> chat;
  };
  std::map<std::string, Opened> opened_;
};

OrderedJson encoded(const OrderedJson& in, Folders& folders) {
  const TokenizerChat& chat = folders.open(in.at("folder"), in.at("now"));
  OrderedJson line = {{"messages", in.at("messages")}};
  if (in.contains("tools")) line["tools"] = in["tools"];
  const Conversation conversation = conversation_from_json(line.dump(), "line");
  const EncodedChat made = chat.encode(conversation, "line");
  return {{"text", chat.render(conversation, false, "line")},
          {"ids", made.tokens},
          {"mask", made.loss_mask},
          {"prompt", chat.render(conversation, true, "line")},
          {"prompt_ids", chat.encode_prompt(conversation, "line")}};
}

OrderedJson rendered(const OrderedJson& in) {
  const ChatProgram program(in["template"].get<std::string>(), "template");
  TemplateInput input;
  for (const auto& [name, value] : in.at("variables").items())
    input.set(name, value_from_json(value.dump(), name), true);
  for (const auto& message : in.at("messages")) input.add_message(value_from_json(message.dump(), "message"));
  return {{"text", program
                       .render(input, input.num_messages(), in.value("add_generation_prompt", false),
                               in.value("now", int64_t{0}))
                       .bytes()}};
}

int run() {
  Folders folders;
  for (std::string line; std::getline(std::cin, line);) {
    OrderedJson out;
    try {
      const OrderedJson in = OrderedJson::parse(line);
      out = in.contains("template") ? rendered(in) : encoded(in, folders);
    } catch (const base::Error& error) {
      out = {{"error", error.what()}};
    }
    std::cout << out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace pleat::data

int main() { return pleat::data::run(); }
