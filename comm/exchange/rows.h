#pragma once
// One maker per exchange; exchange.cc holds the table.

#include <memory>

#include "gradwire/comm/exchange.h"

namespace gradwire {

std::unique_ptr<Exchange> make_dense_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_two_shot_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_gather_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_dense_exchange_on_device(ExchangeContext context);
std::unique_ptr<Exchange> make_two_shot_exchange_on_device(ExchangeContext context);
std::unique_ptr<Exchange> make_gather_exchange_on_device(ExchangeContext context);
std::unique_ptr<Exchange> make_hierarchical_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_gtopk_exchange(ExchangeContext context);
/// Of a bucket with compressors of two rounds: `make`'s exchange of the first payloads, then its
/// exchange of all.
std::unique_ptr<Exchange> make_two_round_exchange(
    ExchangeContext context, std::unique_ptr<Exchange> (*make)(ExchangeContext));
std::unique_ptr<Exchange> make_sum_exchange(ExchangeContext context, AllReduce algorithm);

}  // namespace gradwire
