#include "command_table.h"

#include <CLI/CLI.hpp>
#include <string_view>

namespace pleat::apps {
namespace {

constexpr Command kCommands[] = {
    {"train", "Train a model. The same command again resumes from the newest checkpoint", add_train},
    {"launch", "Start a command on several ranks, one process each: 'launch --gpus 8 train CONFIG'",
     add_launch},
    {"plan", "Exact memory of a training step by owner, without allocating it", add_plan},
    {"fit", "Find the memory techniques that make a training step fit, and which of them cost least",
     add_fit},
    {"flops", "Parameters and FLOPs per trained token of a model, by part", add_flops},
    {"explain", "Print the program a run would execute, stage by stage", add_explain},
    {"explain-config", "Meaning, default and range of a configuration key or section", add_explain_config},
    {"layout", "Show which rank does what: places for attention and experts, groups, pipeline", add_layout},
    {"verify-layout",
     "Prove that a layout computes what one rank computes, on a small copy of your own model",
     add_verify_layout},
    {"report", "Write a self-contained HTML page about a run", add_report},
    {"trace", "Run a few steps on random tokens and write the timeline of the last one", add_trace},
    {"simulate", "A training step of many ranks on a described machine: time, MFU, memory, what bounds it",
     add_simulate},
    {"machines", "Machines that `simulate` knows, and their files", add_machines},
    {"generate", "Continue prompts with the newest checkpoint of a run or a Hugging Face model",
     add_generate},
    {"eval", "Perplexity of data, or log-likelihoods of a request file", add_eval},
    {"data", "Tokenize text, train tokenizers, look into datasets", add_data},
    {"data tokenize", "Text, JSONL or conversations to a .bin/.idx dataset", add_data_tokenize},
    {"data train-tokenizer",
     "Train a byte-level BPE on text; other libraries load the tokenizer.json as well",
     add_data_train_tokenizer},
    {"data inspect", "Check a dataset; show its documents, or with --seq-len samples as training sees them",
     add_data_inspect},
    {"probe", "One forward and backward of a Hugging Face model on given tokens, written to a file",
     add_probe},
    {"import", "Make a run of a Hugging Face model: a config and a checkpoint to train from", add_import},
    {"export", "Write the newest checkpoint of a run as a Hugging Face model folder", add_export},
    {"convert", "Dequantize the weights of a model folder (fp8, mxfp4) into a new one", add_convert},
    {"upcycle", "Make a Mixture of Experts of a dense model", add_upcycle},
    {"bench", "Measure against a ceiling or a peer", add_bench},
    {"bench kernels", "Every GPU kernel against the ceiling that binds it", add_bench_kernels},
    {"bench grouped",
     "Grouped products asked for on standard input, a JSON line each: {\"direction\": \"fwd\", \"in\": 2048, "
     "\"out\": 1536, \"rows\": [1024, 980]} binds one (fwd, dgrad or wgrad), {\"run\": 3} times it with a "
     "cold L2 "
     "cache and answers {\"ms\": [...]}",
     add_bench_grouped},
    {"bench layer",
     "One MoE layer, router to combination, forward and backward, at the shapes of known models",
     add_bench_layer},
    {"bench fit", "Curves for stages nobody has measured, from files of costs; prints how well they fit",
     add_bench_fit},
    {"bench step", "Time training steps on random tokens, and every part of them against a ceiling",
     add_bench_step},
    {"bench costs",
     "Time every stage of a training step, and of steps of other sizes, into a file for estimates",
     add_bench_costs},
    {"doctor", "What this machine is, and every communication operation with known answers, timed",
     add_doctor},
    {"completion", "Print the completion script of a shell: sub-commands, options, configuration keys",
     add_completion},
    {"help", "This text, or that of a sub-command", add_help},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

void add_commands(CLI::App& app, Action& chosen) {
  for (const Command& row : commands()) {
    const std::string_view name = row.name;
    const size_t space = name.find(' ');
    CLI::App* parent = &app;
    if (space != name.npos) parent = app.get_subcommand(std::string(name.substr(0, space)));
    const std::string_view word = space == name.npos ? name : name.substr(space + 1);
    row.add(*parent->add_subcommand(std::string(word), row.meaning), chosen);
  }
}

}  // namespace pleat::apps
