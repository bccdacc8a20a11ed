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
/// Whether a payload has values in every chunk, so that a slice needs no room for all of them.
bool fills_every_chunk(const CompressorSpec& spec);
std::unique_ptr<Exchange> make_hierarchical_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_gtopk_exchange(ExchangeContext context);
/// Of a bucket with compressors of two rounds: `make`'s exchange of the first payloads, then its
/// exchange of all.
std::unique_ptr<Exchange> make_two_round_exchange(
    ExchangeContext context, std::unique_ptr<Exchange> (*make)(ExchangeContext));
/// On a GPU: what `parts` add up to becomes the slot's mean, or, where that has no elements, what
/// the second round begins with. There the bytes are done with behind the call.
void decode_on_device(const GroupSlot& slot, const ExchangeResult& parts, Context& context);
/// Whether a bucket's gradients travel as they are: "dense" on the CPU, of float32 and `none` alone.
bool adds_gradients(std::string_view exchange, std::span<Compressor* const> compressors,
                    const Transport& transport);
/// "dense" for those: takes the gradient in GroupSlot::mean, of groups that lie one behind another,
/// and no payloads; result() gives what is in `mine` by then. After an error the gradient is lost.
std::unique_ptr<Exchange> make_gradient_sum_exchange(ExchangeContext context);
std::unique_ptr<Exchange> make_sum_exchange(ExchangeContext context, AllReduce algorithm);

}  // namespace gradwire
