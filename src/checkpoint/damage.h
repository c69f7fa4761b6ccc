// What an error says about the checkpoint it came from. A damaged one may be passed over, and replaced by a save;
// a fault of the rank or the program that reads it is no reason for either.
#pragma once

#include "base/error.h"

namespace pleat::checkpoint {

// The checkpoint may well be whole, but not for this reader: a newer program wrote it, or this rank does not see the
// files the leader sees.
class NotForUs : public base::Error {
 public:
  explicit NotForUs(std::string message) : Error(base::ExitCode::Storage, std::move(message)) {}
};

// Whether an error of opening or verifying means that the checkpoint itself is damaged: bytes that are not what was
// written, or a table that breaks the format. Never what the disk says (base::VfsError): who asks knows more.
bool is_damage(const base::Error& error);

}  // namespace pleat::checkpoint
