#pragma once
// The C interface between libgradwire_comm and the Gloo plug-in. Only plain data and function
// pointers cross it: no exception, and nothing is freed by the side that did not allocate it.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GRADWIRE_GLOO_ABI_VERSION 2u
#define GRADWIRE_GLOO_ENTRY "gradwire_gloo_entry"

/* What a call returns. */
enum {
  GRADWIRE_GLOO_DONE = 0,
  GRADWIRE_GLOO_FAILED = 1,    /* error holds why */
  GRADWIRE_GLOO_TIMED_OUT = 2, /* the peer stayed silent */
  GRADWIRE_GLOO_CLOSED = 3     /* close() was called */
};

/* Written by the plug-in, owned by the caller; zero-terminated. */
typedef struct {
  char text[512];
  int peer; /* the rank at fault where it is not the message's own, else -1 */
} gradwire_gloo_error;

/* The caller's store: each returns 0, or another value after which open() fails. */
typedef struct {
  void* self;
  int (*set)(void* self, const char* key, const void* value, size_t bytes);
  /* Blocks until the key is there. Copies at most `capacity` bytes and writes the full size. */
  int (*get)(void* self, const char* key, void* value, size_t capacity, size_t* bytes);
} gradwire_gloo_store;

typedef struct {
  int rank;
  int world_size;
  const char* network_interface;
  int64_t connect_timeout_ms;
  gradwire_gloo_store store; /* used inside open() only */
} gradwire_gloo_options;

typedef struct gradwire_gloo_engine gradwire_gloo_engine;

/* All calls may come from any thread. */
typedef struct {
  uint32_t abi_version;
  uint32_t table_bytes;
  int (*open)(const gradwire_gloo_options*, gradwire_gloo_engine**, gradwire_gloo_error*);
  int (*post_send)(gradwire_gloo_engine*, int peer, uint64_t tag, const void* data, size_t bytes,
                   uint64_t* message, gradwire_gloo_error*);
  int (*post_recv)(gradwire_gloo_engine*, int peer, uint64_t tag, void* data, size_t bytes,
                   uint64_t* message, gradwire_gloo_error*);
  /* Ends the message. Unless it returns DONE, the engine is closed and no posted buffer is touched
     any more. */
  int (*wait)(gradwire_gloo_engine*, uint64_t message, int64_t timeout_ms, gradwire_gloo_error*);
  void (*close)(gradwire_gloo_engine*);
  void (*destroy)(gradwire_gloo_engine*);
} gradwire_gloo_table;

/* The plug-in's one symbol; NULL when it cannot serve this version. */
typedef const gradwire_gloo_table* (*gradwire_gloo_entry_function)(uint32_t abi_version);

#ifdef __cplusplus
}
#endif
