// Numbers as people read them: three significant digits and a unit. Never used in files meant for programs.
#pragma once

#include <cstdint>
#include <string>

namespace pleat::report {

std::string format_count(double count);                    // 950, 12.3 k, 4.56 M, 7.89 G, 1.20 T
std::string format_bytes(double bytes);                    // 512 B, 1.50 KiB, 2.25 GiB
std::string format_duration(double seconds);               // 850 ms, 42 s, 1.2 min, 3.4 h, 2.1 days
std::string format_microseconds(double us);                // 0.80 µs, 12.5 µs, 3.20 ms, 1.25 s
std::string format_token_rate(double per_s);               // 12.3 ktok/s
std::string format_significant(double value, int digits);  // 0.000312 -> 3.12e-04, 1.9312 -> 1.93

}  // namespace pleat::report
