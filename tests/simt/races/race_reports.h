#pragma once
// How many races ThreadSanitizer has reported in this process.

namespace gradwire::testing {

int race_reports();

}  // namespace gradwire::testing
