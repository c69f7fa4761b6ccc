// The words of program/builder.h that every file here which writes stages uses, said once. For .cpp files: headers name
// the namespace.
#pragma once

#include "program/builder.h"

namespace pleat::model {

using program::AttrSet;
using program::Group;
using program::none;
using program::Op;
using program::Owner;
using program::Phase;
using program::r;
using program::u;
using program::w;

}  // namespace pleat::model
