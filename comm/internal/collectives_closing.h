#pragma once
// How a collective that fails ends: part of collectives_messages.cc and collectives_rounds.cc.

#include "gradwire/comm/collectives.h"
#include "gradwire/comm/transport/frame.h"

namespace gradwire {

inline std::string name_of(Verb verb, const CallTag& tag) {
  return tag.what.empty() ? std::string(to_string(verb))
                          : concat(to_string(verb), " of ", tag.what);
}

template <class Body>
void Collectives::closing_on_error(Verb verb, const CallTag& tag, Body body) {
  try {
    body();
  } catch (const TransportError& error) {
    const std::string reason = concat(name_of(verb, tag), ": ", error.what());
    close(reason);
    throw TransportError(reason, error.peer());
  } catch (const std::exception& error) {
    close(concat(name_of(verb, tag), ": ", error.what()));
    throw;
  }
}

}  // namespace gradwire
