// libFuzzer's way in: `cmake --preset fuzz`, then decoder_fuzz -max_total_time=60 CORPUS.

#include "tests/fuzz/decoder_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gradwire::fuzz::decode(std::as_bytes(std::span(data, size)));
  return 0;
}
