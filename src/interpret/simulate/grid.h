// The schedule as a picture in text: pipeline ranks down, time to the right, in every cell what is computed.
#pragma once

#include <string>
#include <vector>

#include "interpret/network/network.h"

namespace pleat::interpret {

struct GridTimes {
  int forward = 1, backward = 2;  // cells a turn takes
};

// Every turn takes the same time whatever is in it, messages take none: the grid shows the order and the
// bubble of the schedule itself. F3.1 is the forward of microbatch 3 through chunk 1; without chunks F3.
// Below, per node: forwards before the first backward, the most chunks and layers in flight, the bubble.
std::string grid(const Network& network, const GridTimes& times = {});
// The same cells as an SVG document: a shade per microbatch, blue forward and orange backward, the chunk as a
// number behind the microbatch.
std::string grid_svg(const Network& network, const GridTimes& times = {});

}  // namespace pleat::interpret
