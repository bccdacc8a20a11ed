// libgradwire_gloo.so: messages between pairs of ranks over Gloo's TCP device. The only file that
// sees Gloo's headers; of Gloo it uses the pairs, their send and receive, and the connecting.

#include "gradwire/comm/internal/gloo_plugin_engine.h"
#include "gradwire/comm/internal/plugin_table.h"
