#pragma once
// One maker per exchange; exchange.cc holds the table.

#include <memory>

#include "gradwire/comm/exchange.h"

namespace gradwire {

std::unique_ptr<Exchange> make_dense_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_two_shot_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_gather_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_hierarchical_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_gtopk_exchange(ExchangeContext context);
/// Of a bucket with compressors of two rounds: `make`'s exchange of the first payloads, then its
/// exchange of all.
std::unique_ptr<Exchange> make_two_round_exchange(
    ExchangeContext context, std::unique_ptr<Exchange> (*make)(ExchangeContext));
/// Whether a bucket's gradients travel as they are: "dense" on the CPU, of float32 and `none` alone.
bool adds_gradients(std::string_view exchange, std::span<Compressor* const> compressors,
                    const Transport& transport);
/// "dense" for those: takes the gradient in GroupSlot::mean, of groups that lie one behind another,
/// and no payloads; result() gives what is in `mine` by then. After an error the gradient is lost.
std::unique_ptr<Exchange> make_gradient_sum_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_sum_exchange(ExchangeContext context, AllReduce algorithm);

}  // namespace gradwire
