// Files of a preparation that was killed: NAME.tmp-PID-N, as large as the data.
#pragma once

#include <string>

namespace pleat::run {

// Removes those in `folder` whose process is gone. Only for who holds the run's lock and has not begun to write
// there: then a file of this process's own number is left from a former one. What cannot be removed stays.
void remove_leftovers(const std::string& folder);

}  // namespace pleat::run
