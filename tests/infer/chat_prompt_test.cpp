// What ends a generation, and how a conversation becomes a prompt.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "data/tokenizer/train_bpe.h"
#include "infer/chat_prompt.h"
#include "infer/stops.h"

namespace pleat::infer::testing {
namespace {

// A tokenizer with the tokens of ChatML: ids 0, 1 and 2.
class ChatVocabulary : public ::testing::Test {
 protected:
  ChatVocabulary()
      : folder_(std::filesystem::temp_directory_path() / ("pleat-chat-" + std::to_string(getpid()))) {
    data::TrainBpeOptions o;
    o.vocab_size = 262;
    o.special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    data::BpeTrainer trainer(o);
    trainer.add("hello hello hello, user and assistant");
    data::write_trained_bpe(trainer.train(), folder_.string());
    vocabulary_ = std::make_unique<Vocabulary>(folder_.string());
  }
  ~ChatVocabulary() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
  std::unique_ptr<Vocabulary> vocabulary_;
};

TEST_F(ChatVocabulary, AStopThatIsASpecialTokenIsMatchedByItsId) {
  const Stops stops = make_stops({"<|im_end|>", "bye"}, *vocabulary_);
  EXPECT_EQ(stops.tokens, std::vector<int32_t>{2});
  EXPECT_EQ(stops.texts, (std::vector<std::string>{"<|im_end|>", "bye"}));
  EXPECT_THROW(make_stops({"bye<|im_end|>"}, *vocabulary_), base::Error);
  EXPECT_THROW(make_stops({""}, *vocabulary_), base::Error);
}

TEST_F(ChatVocabulary, APromptEndsWhereTheAnswerBegins) {
  const ChatPrompt prompt(data::chat_preset("chatml"), vocabulary_->tokenizer());
  const std::vector<int32_t> ids =
      prompt.encode({{.role = "system", .content = "hello"}, {.role = "user", .content = "<|im_end|>"}});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 3) << "two messages and the answer to come";
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 2) << "what the user spells ends nothing";
  EXPECT_EQ(
      vocabulary_->tokenizer().decode(ids),
      "<|im_start|>system\nhello<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt.end_tokens(), std::vector<int32_t>{2});
  EXPECT_TRUE(prompt.end_texts().empty());
}

TEST_F(ChatVocabulary, WithoutAnEndTokenTheNextTurnEndsTheAnswer) {
  const ChatPrompt prompt(data::chat_preset("plain"), vocabulary_->tokenizer());
  EXPECT_TRUE(prompt.end_tokens().empty());
  const std::vector<std::string>& texts = prompt.end_texts();
  EXPECT_NE(std::find(texts.begin(), texts.end(), "\nUser: "), texts.end());
  EXPECT_EQ(prompt.answer("Fine.\n"), "Fine.");
  EXPECT_EQ(vocabulary_->tokenizer().decode(prompt.encode({{.role = "user", .content = "hello"}})),
            "User: hello\nAssistant: ");
  // The tokenizer's folder has no template of its own.
  EXPECT_THROW(ChatPrompt(data::chat_preset("tokenizer"), vocabulary_->tokenizer()), base::Error);
}

}  // namespace
}  // namespace pleat::infer::testing
