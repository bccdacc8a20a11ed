#pragma once
// One maker per exchange; exchange.cc holds the table.

#include <memory>

#include "gradwire/comm/exchange.h"

namespace gradwire {

std::unique_ptr<Exchange> make_dense_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_gather_exchange(ExchangeContext context);

}  // namespace gradwire
