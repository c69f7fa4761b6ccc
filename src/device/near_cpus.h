// The processors that are near a GPU, and whether the threads of a process are bound to them.
//
// A rank's threads launch kernels and fill pinned memory: from the other socket each of these crosses the machine. Linux
// tells which processors are near a device of the PCI bus; where it does not, or where somebody has already said where
// this process may run (Slurm's --cpus-per-task, taskset, a container), nothing is done, and that is said.
#pragma once

#include <optional>
#include <set>
#include <string>

namespace pleat::device {

using Cpus = std::set<int>;

// "0-3,8" is 0, 1, 2, 3 and 8, as the files of Linux say it; "" is none. Throws on everything else.
Cpus parse_cpu_list(const std::string& text);
std::string cpu_list(const Cpus& cpus);  // the other way

struct NearCpus {
  Cpus bind_to;        // empty: threads stay where they may run
  std::string remark;  // what is done and why, for people
};
// `allowed`: where the process may run now; `online`: what the machine has; `near`: what is near the GPU at `bus`, if the
// system tells.
NearCpus choose_near_cpus(const std::string& bus, const Cpus& allowed, const Cpus& online,
                          const std::optional<Cpus>& near);

// From /sys, or from the same files below another folder. `bus`: "0000:1B:00.0".
std::optional<Cpus> read_near_cpus(const std::string& bus, const std::string& sys = "/sys");
Cpus read_online_cpus(const std::string& sys = "/sys");
Cpus allowed_cpus();  // of the calling thread

// Binds all threads of this process, and with them those they start, as choose_near_cpus says; returns the remark, which
// near_cpus_remark gives again ("" until then). Throws when the system refuses.
std::string bind_near_gpu(const std::string& bus);
std::string near_cpus_remark();

}  // namespace pleat::device
