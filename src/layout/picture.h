// A layout as a picture: both meshes over the same ranks, each rank at the same place in both.
#pragma once

#include <string>

#include "layout/layout.h"

namespace pleat::layout {

// Ranks a picture can hold and still be read.
inline constexpr int64_t kMostPictureRanks = 1024;

// An SVG document with two panels. In both, pipeline stages stand side by side; in a stage a row is a data
// replica, its columns the tensor ranks of each context rank. The first panel colours the ranks that share a
// sequence, frames tensor groups, and names places on the attention mesh; the second colours the ranks that
// exchange tokens and names places on the expert mesh. Every rank is one element of class "rank" per panel,
// with its number in data-rank. Throws past kMostPictureRanks.
std::string picture(const Layout& layout);

}  // namespace pleat::layout
