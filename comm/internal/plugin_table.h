#pragma once
// The plug-in's side of plugin_abi.h, the same for all of them: a table of functions over the
// `gradwire_plugin_engine` that a plug-in defines before it includes this.

#include <exception>

#include "gradwire/comm/internal/plugin_process.h"

namespace {

/// Runs `body` so that no exception leaves the plug-in.
template <class F>
int guarded(gradwire_plugin_error* error, F body) {
  try {
    return body();
  } catch (const InvalidOptions& exception) {
    write_error(error, exception.what());
    return GRADWIRE_PLUGIN_INVALID;
  } catch (const std::exception& exception) {
    write_error(error, exception.what());
  } catch (...) {
    write_error(error, "an exception of an unknown type");
  }
  return GRADWIRE_PLUGIN_FAILED;
}

int open_engine(const gradwire_plugin_options* options, gradwire_plugin_engine** engine,
                gradwire_plugin_error* error) {
  const WithoutPipeSignal quiet;  // for the threads started here too
  return guarded(error, [&] {
    *engine = new gradwire_plugin_engine(*options);
    return int{GRADWIRE_PLUGIN_DONE};
  });
}

int post_send(gradwire_plugin_engine* engine, int peer, uint64_t tag, const void* data,
              size_t bytes, uint64_t* message, gradwire_plugin_error* error) {
  // One buffer type serves both directions; this one is only read from.
  void* const source = const_cast<void*>(data);
  return guarded(error,
                 [&] { return engine->post(true, peer, tag, {source, bytes}, message, error); });
}

int post_recv(gradwire_plugin_engine* engine, int peer, uint64_t tag, void* data, size_t bytes,
              uint64_t* message, gradwire_plugin_error* error) {
  return guarded(error,
                 [&] { return engine->post(false, peer, tag, {data, bytes}, message, error); });
}

int wait_for(gradwire_plugin_engine* engine, uint64_t message, int64_t timeout_ms,
             gradwire_plugin_error* error) {
  return guarded(error, [&] { return engine->wait(message, timeout_ms, error); });
}

void leave_engine(gradwire_plugin_engine* engine) {
  const WithoutPipeSignal quiet;
  gradwire_plugin_error ignored{{}, -1};  // whoever could not be told sees the connection end
  guarded(&ignored, [&] {
    engine->leave();
    return int{GRADWIRE_PLUGIN_DONE};
  });
}

void close_engine(gradwire_plugin_engine* engine, const char* reason) {
  gradwire_plugin_error ignored{{}, -1};  // what fails to close ends with destroy() or the peer
  guarded(&ignored, [&] {
    engine->close(reason);
    return int{GRADWIRE_PLUGIN_DONE};
  });
}

void destroy_engine(gradwire_plugin_engine* engine) {
  const WithoutPipeSignal quiet;
  delete engine;
}

constexpr gradwire_plugin_table kTable = {GRADWIRE_PLUGIN_ABI_VERSION,
                                          sizeof(gradwire_plugin_table),
                                          gradwire_plugin_engine::kTransport,
                                          open_engine,
                                          post_send,
                                          post_recv,
                                          wait_for,
                                          leave_engine,
                                          close_engine,
                                          destroy_engine};

}  // namespace

extern "C" __attribute__((visibility("default"))) const gradwire_plugin_table*
gradwire_plugin_entry(uint32_t abi_version) {
  return abi_version == GRADWIRE_PLUGIN_ABI_VERSION ? &kTable : nullptr;
}
