// Which GPU this process uses. CUDA keeps a current device per thread; here it is one for the process.
#pragma once

#include <string>
#include <vector>

namespace pleat::device::cuda {

// Of those visible; 0 until it is called. Before anything is allocated on a GPU.
void choose_device(int device);
int chosen_device();
std::string device_bus();  // where it sits in this machine: "0000:1b:00.0"
// Places of the other visible GPUs whose memory it reaches by itself (peer access).
std::vector<std::string> reachable_buses();
// This thread's calls go to it. Cheap when they do already; whoever allocates or makes a lane is inside.
void enter_device();

}  // namespace pleat::device::cuda
