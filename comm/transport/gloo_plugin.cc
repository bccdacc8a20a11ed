// libgradwire_gloo.so: messages between pairs of ranks over Gloo's TCP device. The only file that
// sees Gloo's headers; of Gloo it uses the pairs, their send and receive, and the connecting.

#include "gradwire/comm/internal/gloo_plugin_engine.h"

namespace {

/// Runs `body` so that no exception leaves the plug-in.
template <class F>
int guarded(gradwire_gloo_error* error, F body) {
  try {
    return body();
  } catch (const std::exception& exception) {
    write_error(error, exception.what());
  } catch (...) {
    write_error(error, "an exception of an unknown type");
  }
  return GRADWIRE_GLOO_FAILED;
}

int open_engine(const gradwire_gloo_options* options, gradwire_gloo_engine** engine,
                gradwire_gloo_error* error) {
  const WithoutPipeSignal quiet;  // for the threads started here too
  return guarded(error, [&] {
    *engine = new gradwire_gloo_engine(*options);
    return int{GRADWIRE_GLOO_DONE};
  });
}

int post_send(gradwire_gloo_engine* engine, int peer, uint64_t tag, const void* data, size_t bytes,
              uint64_t* message, gradwire_gloo_error* error) {
  // Gloo has one buffer type for both directions; it only reads from this one.
  void* const source = const_cast<void*>(data);
  return guarded(error,
                 [&] { return engine->post(true, peer, tag, {source, bytes}, message, error); });
}

int post_recv(gradwire_gloo_engine* engine, int peer, uint64_t tag, void* data, size_t bytes,
              uint64_t* message, gradwire_gloo_error* error) {
  return guarded(error,
                 [&] { return engine->post(false, peer, tag, {data, bytes}, message, error); });
}

int wait_for(gradwire_gloo_engine* engine, uint64_t message, int64_t timeout_ms,
             gradwire_gloo_error* error) {
  return guarded(error, [&] { return engine->wait(message, timeout_ms, error); });
}

void close_engine(gradwire_gloo_engine* engine) {
  gradwire_gloo_error ignored{{}, -1};  // pairs that fail to close are closed by the peer or by destroy()
  guarded(&ignored, [&] {
    engine->close();
    return int{GRADWIRE_GLOO_DONE};
  });
}

void destroy_engine(gradwire_gloo_engine* engine) {
  const WithoutPipeSignal quiet;
  delete engine;
}

constexpr gradwire_gloo_table kTable = {GRADWIRE_GLOO_ABI_VERSION,
                                        sizeof(gradwire_gloo_table),
                                        open_engine,
                                        post_send,
                                        post_recv,
                                        wait_for,
                                        close_engine,
                                        destroy_engine};

}  // namespace

extern "C" __attribute__((visibility("default"))) const gradwire_gloo_table* gradwire_gloo_entry(
    uint32_t abi_version) {
  return abi_version == GRADWIRE_GLOO_ABI_VERSION ? &kTable : nullptr;
}
