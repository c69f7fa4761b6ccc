#include "checkpoint/damage.h"

#include "base/vfs.h"

namespace pleat::checkpoint {

bool is_damage(const base::Error& error) {
  if (dynamic_cast<const NotForUs*>(&error) || dynamic_cast<const base::VfsError*>(&error)) return false;
  return error.code() == base::ExitCode::Storage || error.code() == base::ExitCode::BadInput;
}

}  // namespace pleat::checkpoint
