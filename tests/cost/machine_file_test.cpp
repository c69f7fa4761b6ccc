// Machines as files: those of the binary are whole, and a wrong one is refused with the key, what it is and what is needed.
#include "cost/machine_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "support/files.h"

namespace pleat::cost {
namespace {

std::string text_of(std::string_view name) {
  for (const ShippedMachine& m : shipped_machines())
    if (m.name == name) return std::string(m.text);
  ADD_FAILURE() << name;
  return "";
}

std::string without_line(std::string text, const std::string& begins) {
  const size_t at = text.find("\n" + begins);
  EXPECT_NE(at, std::string::npos) << begins;
  return text.erase(at, text.find('\n', at + 1) - at);
}

std::string with_line(std::string text, const std::string& begins, const std::string& line) {
  const size_t at = text.find("\n" + begins) + 1;
  return text.replace(at, text.find('\n', at) - at, line);
}

std::string machine_fault(const std::string& text) {
  try {
    machine_from_toml(text, "mine.toml");
  } catch (const base::Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(MachineFile, ShippedMachinesAreWholeAndNamedAsTheirFiles) {
  std::vector<std::string> names;
  for (const ShippedMachine& m : shipped_machines()) {
    const Machine read = find_machine(std::string(m.name));
    EXPECT_EQ(read.name, m.name);
    EXPECT_FALSE(read.description.empty());
    names.emplace_back(m.name);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"a100", "b200", "cpu", "gb200-nvl72", "gb300-nvl72", "h100", "h200"}));
  const Machine h200 = find_machine("h200");
  EXPECT_EQ(h200.node.host_link_both_gb_s, 50.8);
  EXPECT_EQ(h200.network_gb_s(), 50) << "eight adapters for eight GPUs";
  EXPECT_EQ(find_machine("gb200-nvl72").node.ranks, 72);
  EXPECT_EQ(h200.processor.flops_per_ns(tensor::Dtype::BF16), 989e3);
}

TEST(MachineFile, EveryKeyIsNeededUnlessItSaysSo) {
  const std::string whole = text_of("h100");
  EXPECT_EQ(machine_fault(whole), "accepted");
  for (const MachineKey& key : machine_keys()) {
    const std::string name = key.path.substr(key.path.find('.') + 1);
    const std::string said = machine_fault(without_line(whole, name + " ="));
    if (!key.needed)
      EXPECT_EQ(said, "accepted") << key.path;
    else
      EXPECT_NE(said.find(key.path + " is missing"), std::string::npos) << said;
  }
}

TEST(MachineFile, WrongFilesAreRefusedByKey) {
  const std::string whole = text_of("h100");
  const auto said = [&](const std::string& begins, const std::string& line) {
    return machine_fault(with_line(whole, begins, line));
  };
  EXPECT_NE(said("units", "unitz = 3").find("mine.toml:"), std::string::npos);
  EXPECT_NE(said("units", "unitz = 3").find("the nearest is \"processor.units\""), std::string::npos);
  EXPECT_NE(said("units", "units = 1.5").find("processor.units = 1.5; needed is a whole number"),
            std::string::npos);
  EXPECT_NE(said("units", "units = 0").find("needed is 1 to"), std::string::npos);
  EXPECT_NE(said("memory_gb_s", "memory_gb_s = nan").find("memory_gb_s = nan"), std::string::npos);
  EXPECT_NE(said("memory_gb_s", "memory_gb_s = \"fast\"").find("is no number"), std::string::npos);
  EXPECT_NE(said("rails", "rails = 1").find("true or false"), std::string::npos);
  EXPECT_NE(said("kind", "kind = \"tpu\"").find("\"gpu\" or \"cpu\""), std::string::npos);
  EXPECT_NE(said("host_link_both_gb_s", "host_link_both_gb_s = 500").find("at most node.host_link_gb_s"),
            std::string::npos);
  EXPECT_NE(said("name", "name = \"\\u001b[2J\"").find("machine.name"), std::string::npos);
  EXPECT_NE(said("description", "description = \"two\\nlines\"").find("one line of printable text"),
            std::string::npos);
  EXPECT_NE(said("gpu", "").find("processor.gpu is missing"), std::string::npos);
  EXPECT_NE(said("name", "name = \"\"").find("machine.name is empty"), std::string::npos);
  EXPECT_NE(machine_fault("[machine").find("not valid TOML"), std::string::npos);
  EXPECT_NE(machine_fault("").find("machine.name is missing"), std::string::npos);
}

// By whole words of the driver's name, so that no GPU is taken for another whose name is a part of its own.
// Times of a machine that is next to nothing would not fit into their numbers.
TEST(MachineFile, VanishingRatesAreRefused) {
  for (const char* key : {"bf16_tflops", "fp8_tflops", "f32_tflops", "memory_gib", "host_link_both_gb_s"})
    EXPECT_NE(
        machine_fault(with_line(text_of("h100"), std::string(key) + " =", std::string(key) + " = 1e-300"))
            .find("at least 0.001"),
        std::string::npos)
        << key;
}

TEST(MachineFile, GpusAreKnownByTheirDriversName) {
  const auto of = [](const char* name) {
    const std::optional<Machine> m = machine_of_gpu(name);
    return m ? m->name : "none";
  };
  EXPECT_EQ(of("NVIDIA H200"), "h200");
  EXPECT_EQ(of("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(of("NVIDIA A100-SXM4-80GB"), "a100");
  EXPECT_EQ(of("NVIDIA B200"), "b200");
  EXPECT_EQ(of("NVIDIA GB200"), "gb200-nvl72");
  EXPECT_EQ(of("NVIDIA GH200 480GB"), "none");
  EXPECT_EQ(of(""), "none");
  EXPECT_FALSE(has_gpu(find_machine("cpu"), "any"));
}

TEST(MachineFile, OwnFilesAreFoundByPath) {
  pleat::testing::TemporaryFolder folder;
  std::ofstream(folder.at("mine.toml")) << with_line(text_of("h100"), "nics", "nics = 4");
  EXPECT_EQ(find_machine(folder.at("mine.toml")).network_gb_s(), 25);
  EXPECT_THROW(find_machine(folder.at("none.toml")), base::Error);
  try {
    find_machine("h1000");
    ADD_FAILURE();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("there are a100, b200, cpu"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace pleat::cost
