// How far what travels on a ring may run ahead of who works on it.
//
// By data alone a shift depends on nothing but the shift before it, so every step's keys and values could
// arrive before the first are used, and each would need a buffer of its own. Here what arrives may take the
// place of what was two steps before: a shift waits for those who read what the shift before it sent. One
// block moves while another is worked on, and two buffers are enough. The waits are part of the program
// (Stage::after): check sees that they cannot hang, plan uses them and a run keeps them.
#pragma once

#include "program/edit.h"

namespace pleat::schedule {

// The waits it declares; none on a ring of two, where every block is shifted once.
std::vector<program::Wait> ring_waits(const program::Program& program);
program::Program bound_ring_buffers(program::Program program);

}  // namespace pleat::schedule
