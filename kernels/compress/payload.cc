#include "gradwire/kernels/compress/payload.h"

namespace gradwire {

PayloadHeader read_header(ConstPayload bytes) {
  PayloadHeader header;
  check(bytes.size() >= sizeof header, "payload: length is ", bytes.size(),
        " bytes, must be at least ", sizeof header);
  std::memcpy(&header, bytes.data(), sizeof header);
  check(header.magic == kPayloadMagic, "payload: magic is ", header.magic, ", must be ",
        kPayloadMagic);
  check(header.version == kPayloadVersion, "payload: version is ", int{header.version},
        ", must be ", int{kPayloadVersion});
  check(header.bytes >= sizeof header && header.bytes <= bytes.size(), "payload: stated length is ",
        header.bytes, " bytes, must be ", sizeof header, " to ", bytes.size());
  return header;
}

}  // namespace gradwire
