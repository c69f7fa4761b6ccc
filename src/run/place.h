// A folder a process works in, held open: a name can be given to another folder at any moment, and whoever then
// writes under that name writes into somebody else's work.
#pragma once

#include <string>

namespace pleat::run {

class Place {
 public:
  // `folder` is there. `key`: the configuration key that names it, for messages.
  Place(std::string folder, std::string key);
  Place(Place&& other) noexcept;
  Place& operator=(Place&&) = delete;
  ~Place();

  // Throws ExitCode::Storage where the name does not lead to this folder any more. Nothing is followed or made.
  void require_unmoved() const;

 private:
  std::string folder_, key_;
  int descriptor_ = -1;
};

// Throws where there is no folder of this name, for commands that read a run.
void require_run_folder(const std::string& folder);

}  // namespace pleat::run
