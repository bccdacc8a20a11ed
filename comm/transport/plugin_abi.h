#pragma once
// The C interface between libgradwire_comm and a transport's plug-in. Only plain data and function
// pointers cross it: no exception, and nothing is freed by the side that did not allocate it.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GRADWIRE_PLUGIN_ABI_VERSION 5u
#define GRADWIRE_PLUGIN_ENTRY "gradwire_plugin_entry"

/* What a call returns. */
enum {
  GRADWIRE_PLUGIN_DONE = 0,
  GRADWIRE_PLUGIN_FAILED = 1,    /* error holds why */
  GRADWIRE_PLUGIN_TIMED_OUT = 2, /* the peer stayed silent */
  GRADWIRE_PLUGIN_CLOSED = 3,    /* close() was called */
  GRADWIRE_PLUGIN_ABORTED = 4,   /* error.peer closed its engine; error.text is its reason */
  GRADWIRE_PLUGIN_INVALID = 5    /* the caller can mend it; error holds what */
};

/* Written by the plug-in, owned by the caller; zero-terminated. */
typedef struct {
  char text[1024];
  int peer; /* the rank at fault where it is not the message's own, else -1 */
} gradwire_plugin_error;

typedef struct {
  int rank;
  int world_size;
  const char* address; /* numeric, of this machine: where peers reach it; MPI needs none */
  /* By rank: connected TCP sockets, the engine's from here on, whatever open() returns; MPI needs
     none. */
  const int* sockets;
  int64_t connect_timeout_ms;
  int64_t timeout_ms; /* how long a peer may be silent in leave() and destroy() */
} gradwire_plugin_options;

typedef struct gradwire_plugin_engine gradwire_plugin_engine;

/* All calls may come from any thread. */
typedef struct {
  uint32_t abi_version;
  uint32_t table_bytes;
  const char* transport; /* its row in the registry */
  int (*open)(const gradwire_plugin_options*, gradwire_plugin_engine**, gradwire_plugin_error*);
  int (*post_send)(gradwire_plugin_engine*, int peer, uint64_t tag, const void* data, size_t bytes,
                   uint64_t* message, gradwire_plugin_error*);
  int (*post_recv)(gradwire_plugin_engine*, int peer, uint64_t tag, void* data, size_t bytes,
                   uint64_t* message, gradwire_plugin_error*);
  /* Ends the message. Unless it returns DONE, the engine is closed and no posted buffer is touched
     any more. */
  int (*wait)(gradwire_plugin_engine*, uint64_t message, int64_t timeout_ms,
              gradwire_plugin_error*);
  /* In good order, once no call is under way: every peer has received what it was sent when this
     returns, or has left, or has died, or was silent for timeout_ms, or a
     minute. close() comes next. */
  void (*leave)(gradwire_plugin_engine*);
  /* What peers have not received is lost. `reason` reaches the peers where the engine has a way to
   * tell them. */
  void (*close)(gradwire_plugin_engine*, const char* reason);
  /* Leaves first where the engine is not closed. */
  void (*destroy)(gradwire_plugin_engine*);
} gradwire_plugin_table;

/* The plug-in's one symbol; NULL when it cannot serve this version. */
typedef const gradwire_plugin_table* (*gradwire_plugin_entry_function)(uint32_t abi_version);

#ifdef __cplusplus
}
#endif
