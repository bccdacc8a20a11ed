#pragma once
// Quantities as people write them on a command line.

#include <string>
#include <string_view>

namespace gradwire::planner {

/// Bytes per second from "10gbit", "10Gbit/s", "10Gb/s" (bits: powers of 1000) or "1.2GB/s",
/// "800MB/s", "1GiB/s" (bytes). `b` is a bit and `B` a byte; "bit" may be in any case. A number
/// without a unit is refused, because bits and bytes differ by eight. More than 0, at most 1e15.
/// @throws InvalidArgument naming the text.
double parse_rate_bytes_per_s(std::string_view text);

/// Seconds from "60us", "1.5ms", "2s", "800ns", "3min" or "2h"; 0 and more.
/// @throws InvalidArgument naming the text.
double parse_seconds(std::string_view text);

/// Bytes from "25MB" (powers of 1000), "25MiB" (powers of 1024), "64kB" or "100B"; 0 and more.
/// @throws InvalidArgument naming the text.
double parse_bytes(std::string_view text);

/// "60 us", "1.5 ms", "2.25 s", "18 min": three digits, of the largest unit that there is at least
/// one of; more before the point where hours are too small.
std::string seconds_text(double seconds);

/// "25.0 MB", in the same manner, by powers of 1000.
std::string bytes_text(double bytes);

}  // namespace gradwire::planner
