// A training step written down before it runs: plain data, no device or network header near it.
//
// A Program is a list of stages in the issue order of one rank. A stage names what runs (op, phase), for
// which microbatch and layer, on which lane, and what it reads and writes. All order a stage needs follows
// from its uses and its lane; nothing else orders it. Interpreters (src/interpret) check, plan, print,
// trace and run the same list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace pleat::program {

using ValueId = int32_t;
using StageId = int32_t;
constexpr ValueId kNoValue = -1;
// Every program declares it first: where the model itself runs. Other lanes are beside it.
constexpr int kComputeLane = 0;

// Order matters: Update of a value forms a chain in program order (the order of a sum is part of the
// program).
enum class Access : uint8_t { Read, Write, Update };
enum class Phase : uint8_t { Forward, BackwardInput, BackwardWeight, Update };
// Store: writes into windows of other ranks, and waits for nobody.
enum class OpClass : uint8_t { Compute, Collective, Transfer, Copy, Store, Host, Update };
enum class Region : uint8_t {
  Embedding,
  Attention,
  Mlp,
  Router,
  Dispatch,
  Experts,
  Combine,
  SharedExperts,
  Head,
  Optimizer,
  HostLink,
};
// Where a value lies. Device: where kernels run; on the CPU that is the host's memory. Pinned: host memory a GPU can
// copy from and to; only copies, and exchanges that read counts on the host, may touch it. Window: memory of the device
// that other ranks of a group write. A stage of class Store that writes such a value writes the others' memory; what
// they write here is there after a meeting of the group (interpret/check/check_windows.h).
enum class Space : uint8_t { Device, Pinned, Window };
constexpr int kNumSpaces = 3;
// Step: dead outside the step. Input: written by the host before the step. Result: kept to the end of the
// step, for the host to read. Persistent: lives across steps; only phase Update may write it.
enum class Life : uint8_t { Step, Input, Result, Persistent };
// Who pays for the bytes in the memory table.
enum class Owner : uint8_t {
  Weights,
  Gradients,
  Optimizer,
  Activations,
  Routing,
  Workspace,
  Inputs,
  Results
};

enum class Op : uint16_t {
#define PLEAT_OP(name, ...) name,
#include "program/ops.def"
};
enum class KernelKind : uint16_t {
#define PLEAT_KERNEL(name) name,
#include "program/ops.def"
};

// Symbolic groups of the layout; one rank resolves every one of them to itself. TensorContext: the ranks that
// hold the tokens of one microbatch. DataContext: the replicas of a tensor-sharded weight. TensorDataContext:
// all ranks of a pipeline stage, each with tokens of its own. Dispatch: expert-tensor x expert, the ranks
// among which routed rows move. Ends: the first and the last pipeline stage. The last six cut the groups over
// which gradients are summed into runs of equal length: Inside is the run of a rank, whose ranks own the
// optimizer state between them; Across are the ranks with the same place in every run, which repeat it.
enum class Group : uint8_t {
  None,
  Tensor,
  Context,
  Data,
  Pipeline,
  Expert,
  ExpertTensor,
  ExpertData,
  World,
  TensorContext,
  DataContext,
  TensorDataContext,
  Dispatch,
  Ends,
  DataContextInside,
  DataContextAcross,
  TensorDataContextInside,
  TensorDataContextAcross,
  ExpertDataInside,
  ExpertDataAcross,
};
// The value "coords" i64[kNumGroups] holds this rank's place in its group of every kind: what a kernel of one
// program needs to know about the rank it runs on.
constexpr int kNumGroups = 20;
enum class Peer : uint8_t { None, Next, Previous };

struct Use {
  ValueId value = kNoValue;  // kNoValue: an optional argument that is absent
  Access access = Access::Read;
  bool operator==(const Use&) const = default;
};

// Static facts of a stage (head counts, eps, top-k): numbers only; integers are exact up to 2^53.
// What varies from step to step is a value, never an attribute.
struct Attr {
  std::string key;
  double number = 0;
  bool operator==(const Attr&) const = default;
};
using AttrSet = std::vector<Attr>;  // sorted by key

struct Value {
  std::string name;         // unique; says microbatch and layer too (program/value_name.h)
  int32_t microbatch = -1;  // -1: belongs to the step
  int32_t layer = -1;       // -1: outside the layers
  tensor::Dtype dtype = tensor::Dtype::F32;
  std::vector<int64_t> shape;  // rows of a routed value are its budget
  int64_t expected_rows = 0;   // routed values only: rows under balanced routing, else 0
  int64_t maximum_rows = 0;    // routed values only: rows no routing can exceed, else 0
  Space space = Space::Device;
  Life life = Life::Step;
  Owner owner = Owner::Activations;
  ValueId view_of = kNoValue;   // one level only
  int64_t offset = 0;           // bytes into the viewed value
  ValueId scale_of = kNoValue;  // codes of few bits that are numbers only together with this value
  bool operator==(const Value&) const = default;
};

struct Stage {
  Op op{};
  Phase phase = Phase::Forward;
  int16_t lane = 0;
  int16_t model = 0;
  int32_t microbatch = -1;  // -1: belongs to the step
  int32_t chunk = 0;
  int32_t layer = -1;  // -1: outside the layers
  int32_t part = 0;    // what repeats inside a layer: loss chunk, ring step, bucket, parameter
  int16_t replay = 0;  // 1: a recomputed forward
  Group group = Group::None;
  Peer peer = Peer::None;
  int32_t attrs = 0;  // index into Program::attrs
  std::vector<StageId>
      after;              // earlier ones to wait for beside data and lane: bytes they free are taken again
  std::vector<Use> uses;  // positional: the op's argument list for this phase
  // Memory for the stage alone, as much as its kernel asks for (schedule/pass/scratch.h): nobody else uses
  // the value, and nothing is in it when the stage begins.
  ValueId scratch = kNoValue;
  bool operator==(const Stage&) const = default;
};

struct Lane {
  std::string name;
  std::string resource;  // compute, links, host_link, host
  bool operator==(const Lane&) const = default;
};

// The stages of one microbatch that a step runs so many times (program/repeat.h).
struct Repeat {
  int32_t microbatch = -1;  // -1: none
  int64_t times = 1;
  bool operator==(const Repeat&) const = default;
};

struct Program {
  std::string name;
  std::vector<Lane> lanes;
  std::vector<AttrSet> attrs{AttrSet{}};
  std::vector<Value> values;
  std::vector<Stage> stages;
  Repeat repeat;

  int32_t intern(AttrSet set);  // sorts, de-duplicates, returns the index
  bool operator==(const Program&) const = default;
};

int64_t num_elements(const Value& value);
int64_t num_bytes(const Value& value);
ValueId root_of(const Program& program, ValueId value);  // the value itself, or what it views

// Facts of the op table.
struct Argument {
  std::string_view name;
  bool output = false, optional = false, may_update = false, in_place = false;
  bool repeated = false;  // stands for one value or more, one after the other
  bool on_host = false;   // an input that the host reads
  bool scale = false;     // the scales of the codes that are the argument before it
  bool rows = false;      // an input whose last number says how many rows of routed values are in use
};
std::string_view name_of(Op op);
std::string_view name_of(Phase phase);  // fwd, dgrad, wgrad, update
std::string_view name_of(Region region);
std::string_view name_of(Owner owner);
std::string_view name_of(Life life);
std::string_view name_of(Space space);
std::string_view name_of(OpClass op_class);
std::string_view name_of(KernelKind kind);
std::string_view name_of(Group group);
std::string_view name_of(Peer peer);
OpClass class_of(Op op);
bool is_exchange(Op op);  // meets other ranks: a collective or a transfer
Region region_of(Op op);
KernelKind kernel_of(Op op);
bool in_module(Op op, std::string_view module);
int num_ops();
// Empty when the op has no such phase.
const std::vector<Argument>& arguments_of(Op op, Phase phase);
const std::vector<Argument>& arguments_of(KernelKind kind, Phase phase);
// An op has at most one repeated argument. Whether a stage may have that many uses, and which argument one of
// them is.
bool takes(const std::vector<Argument>& arguments, size_t num_uses);
const Argument& argument_of(const std::vector<Argument>& arguments, size_t num_uses, size_t use_idx);
// Where, among the uses of a stage, the one stands that the host reads, and the one that says how many rows are in
// use; -1: it has none.
int host_use(const Stage& stage);
int rows_use(const Stage& stage);

// "fwd mb0 L3 attn_norm", "wgrad mb1 head.2", "fwd mb0 L3 expert_up (replay)": unique in a program and the
// same in text form, traces, logs and errors.
std::string stage_name(const Stage& stage);

}  // namespace pleat::program
