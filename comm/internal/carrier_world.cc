#include "gradwire/comm/internal/carrier_world.h"

#include <exception>
#include <utility>

namespace gradwire {

void CarrierEngine::close() noexcept {
  closing_ = true;  // read by a user after it has let go of the lock
  std::unique_lock lock(users_, std::try_to_lock);
  try {
    if (!lock) {
      if (carrier_.interrupt) {
        carrier_.interrupt();
      }
    } else if (!std::exchange(closed_, true)) {
      carrier_.close();
    }
  } catch (const std::exception&) {
    // It is given up either way; what ended the world has been kept.
  }
}

CarrierWorld::CarrierWorld(std::shared_ptr<CarrierEngine> engine, int rank, int world_size,
                           const CarrierOptions& options)
    : timeout(options.timeout) {
  add(engine);
  ControlGroup::Place place;
  std::exception_ptr failed;
  if (rank == 0) {
    try {
      place = ControlGroup::open_place(options.control_host);
    } catch (const std::exception&) {
      failed = std::current_exception();  // after the others have been told
    }
  }
  engine->use([&](const Carrier& carrier) {
    carrier.broadcast(std::as_writable_bytes(std::span(&place.invitation, 1)), 0);
  });
  if (failed) {
    std::rethrow_exception(failed);
  }
  if (place.invitation.port == 0) {
    throw TransportError("rank 0 could not open the control group", 0);
  }
  control_.emplace(
      ControlGroup::Options{.rank = rank,
                            .world_size = world_size,
                            .join_within = options.timeout,
                            .ended = [this](const TransportError&) { close_engines(); }},
      place.invitation, std::move(place.listener));
}

void CarrierWorld::add(const std::shared_ptr<CarrierEngine>& engine) {
  std::lock_guard lock(mutex_);
  std::erase_if(engines_, [](const auto& known) { return known.expired(); });
  engines_.push_back(engine);
}

void CarrierWorld::close_engines() {
  std::vector<std::weak_ptr<CarrierEngine>> engines;
  {
    std::lock_guard lock(mutex_);
    engines = engines_;
  }
  for (const auto& known : engines) {
    if (const auto engine = known.lock()) {
      engine->close();
    }
  }
}

}  // namespace gradwire
