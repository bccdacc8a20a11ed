#pragma once
// Which gradients travel in one message, as others decide it: rules to predict with and to compare
// against.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gradwire/planner/profile.h"

namespace gradwire::planner {

/// Layers of a profile that travel together, in the order in which their gradients appear; a list
/// of buckets is in the order in which they leave.
using Buckets = std::vector<std::vector<uint32_t>>;

/// One message per gradient.
Buckets buckets_per_tensor(const Profile& profile);
/// As they travelled when the profile was made: a gradient without exchange_s waits for the next
/// one that has it. @throws InvalidArgument where the last one has none.
Buckets buckets_as_measured(const Profile& profile);

/// As PyTorch's DistributedDataParallel (Li et al., VLDB 2020): gradients in the order in which
/// they appear; a bucket that has reached its cap is closed. One cap per bucket in turn, the last
/// one for all that follow. @throws InvalidArgument for a cap of no bytes.
Buckets buckets_by_cap(const Profile& profile, std::span<const double> caps_bytes);
/// DDP's own caps: 1 MiB, so that the first exchange begins early, then 25 MiB.
Buckets ddp_buckets(const Profile& profile);

/// Seconds of one exchange of so many bytes.
using ExchangeSeconds = std::function<double(double bytes)>;

/// MG-WFBP (Shi et al., INFOCOM 2019): in the order of backward a gradient waits for the next one
/// if that appears before its own exchange could end, and either before this could begin or less
/// than startup_s, which merging saves, after that.
Buckets mg_wfbp_buckets(const Profile& profile, const ExchangeSeconds& exchange_s,
                        double startup_s);

/// Elements of each bucket.
std::vector<size_t> numels(const Profile& profile, const Buckets& buckets);

/// @throws InvalidArgument unless each layer with elements is in exactly one bucket, and no other.
void validate(const Profile& profile, const Buckets& buckets);

}  // namespace gradwire::planner
