#include "interpret/print/print.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/repeat.h"

namespace pleat::interpret {

using namespace program;

namespace {

void print_value(const Program& program, const Value& v, std::string& out) {
  out += fmt::format("value {} {}[", v.name, tensor::name_of(v.dtype));
  for (size_t i = 0; i < v.shape.size(); ++i) out += fmt::format("{}{}", i ? "," : "", v.shape[i]);
  out += fmt::format("] {} {}", name_of(v.owner), name_of(v.life));
  if (v.space != Space::Device) out += fmt::format(" space={}", name_of(v.space));
  if (v.view_of != kNoValue)
    out += fmt::format(" view={}+{}", program.values[static_cast<size_t>(v.view_of)].name, v.offset);
  if (v.scale_of != kNoValue)
    out += fmt::format(" scale_of={}", program.values[static_cast<size_t>(v.scale_of)].name);
  if (v.expected_rows || v.maximum_rows) out += fmt::format(" rows={}/{}", v.expected_rows, v.maximum_rows);
  out += '\n';
}

void print_stage(const Program& program, const Stage& s, std::string& out) {
  out += stage_name(s);
  out += fmt::format(" @{}", program.lanes[static_cast<size_t>(s.lane)].name);
  if (s.group != Group::None) out += fmt::format(" group={}", name_of(s.group));
  if (s.peer != Peer::None) out += fmt::format(" peer={}", name_of(s.peer));
  if (s.attrs) out += fmt::format(" attrs={}", s.attrs);
  for (const StageId waits_for : s.after) {
    std::string name = stage_name(program.stages[static_cast<size_t>(waits_for)]);
    std::replace(name.begin(), name.end(), ' ', ',');
    out += " after=" + name;
  }
  if (s.scratch != kNoValue)
    out += fmt::format(" scratch={}", program.values[static_cast<size_t>(s.scratch)].name);
  out += " :";
  const auto& arguments = arguments_of(s.op, s.phase);
  bool arrow = false;
  for (size_t i = 0; i < s.uses.size(); ++i) {
    const Argument& argument = argument_of(arguments, s.uses.size(), i);
    if (argument.output && !arrow) out += " ->", arrow = true;
    const Use& use = s.uses[i];
    if (use.value == kNoValue) continue;
    out += fmt::format(" {}{}={}", argument.name, use.access == Access::Update ? "+" : "",
                       program.values[static_cast<size_t>(use.value)].name);
  }
  out += '\n';
}

}  // namespace

std::string print(const Program& program) {
  std::string out = fmt::format("program {}\n", program.name);
  for (const Lane& lane : program.lanes) out += fmt::format("lane {} {}\n", lane.name, lane.resource);
  for (size_t i = 1; i < program.attrs.size(); ++i) {
    out += fmt::format("attrs {}", i);
    for (const Attr& a : program.attrs[i]) out += fmt::format(" {}={}", a.key, a.number);
    out += '\n';
  }
  if (has_repeat(program))
    out += fmt::format("repeat {} {}\n", program.repeat.microbatch, program.repeat.times);
  for (const Value& v : program.values) print_value(program, v, out);
  for (const Stage& s : program.stages) print_stage(program, s, out);
  return out;
}

}  // namespace pleat::interpret
