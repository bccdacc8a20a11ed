#include "gradwire/comm/transport/carrier.h"

#include <utility>

#include "gradwire/comm/internal/carrier_verbs.h"

namespace gradwire {
namespace {

class CarrierTransport final : public StreamTransport<CarrierVerbs> {
 public:
  TransportTraits traits() const override { return {.sums_in_any_order = false}; }
  CarrierTransport(std::string_view name, std::shared_ptr<CarrierWorld> world,
                   std::shared_ptr<CarrierEngine> engine, RankGroup group)
      : StreamTransport(name, world, world, std::move(engine), std::move(group)),
        world_(std::move(world)) {}

  std::unique_ptr<Transport> split(int color) override {
    check(color >= 0, "split: color is ", color, ", must be at least 0");
    std::pair<RankGroup, std::shared_ptr<CarrierEngine>> made;
    run([&] {
      std::lock_guard lock(world_->splits);
      made = verbs().split(color, world_->next_group);
    });
    return std::make_unique<CarrierTransport>(name(), world_, std::move(made.second),
                                              std::move(made.first));
  }

 private:
  std::shared_ptr<CarrierWorld> world_;
};

}  // namespace

std::unique_ptr<Transport> make_carrier_transport(std::string_view name, Carrier carrier,
                                                  const CarrierOptions& options) {
  check(options.timeout.count() > 0, name, ": timeout is ", options.timeout.count(),
        " ms, must be positive");
  check(carrier.world_size >= 1 && carrier.rank >= 0 && carrier.rank < carrier.world_size, name,
        ": rank is ", carrier.rank, " of ", carrier.world_size, ", must be from 0 and below it");
  check(carrier.all_gather && carrier.all_to_all && carrier.broadcast && carrier.split &&
            carrier.close,
        name, ": a function of the carrier is empty, expected all of them");
  RankGroup group;
  for (int r = 0; r < carrier.world_size; ++r) {
    group.members.push_back(r);
  }
  group.rank = carrier.rank;
  auto engine = std::make_shared<CarrierEngine>(std::move(carrier));
  std::shared_ptr<CarrierWorld> world;
  try {
    world = std::make_shared<CarrierWorld>(engine, group.rank, group.size(), options);
  } catch (const Error& error) {
    throw;
  } catch (const std::exception& error) {
    throw TransportError(concat(name, ": joining: ", error.what()));
  }
  return std::make_unique<CarrierTransport>(name, std::move(world), std::move(engine),
                                            std::move(group));
}

}  // namespace gradwire
