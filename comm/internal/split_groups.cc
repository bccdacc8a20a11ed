#include "gradwire/comm/internal/split_groups.h"

#include <algorithm>
#include <map>

namespace gradwire {

std::vector<RankGroup> split_groups(const RankGroup& parent, std::span<const GroupChoice> choices,
                                    uint16_t& next_group) {
  // Any id that no member has used will do, as long as all members choose the same.
  uint64_t base = 0;
  std::map<int64_t, RankGroup> by_color;
  for (size_t r = 0; r < choices.size(); ++r) {
    base = std::max(base, choices[r].next_group);
    RankGroup& group = by_color.try_emplace(choices[r].color, RankGroup{{}, -1, 0}).first->second;
    if (static_cast<int>(r) == parent.rank) {
      group.rank = group.size();
    }
    group.members.push_back(parent.members[r]);
  }
  check(base + by_color.size() <= 0xFFFF, "split: ", base, " groups exist, at most 65535 can");
  std::vector<RankGroup> groups;
  for (auto& [color, group] : by_color) {
    group.id = static_cast<uint16_t>(base + groups.size());
    groups.push_back(std::move(group));
  }
  next_group = static_cast<uint16_t>(base + groups.size());
  return groups;
}

RankGroup& own_group(std::span<RankGroup> groups) {
  return *std::find_if(groups.begin(), groups.end(),
                       [](const RankGroup& group) { return group.rank >= 0; });
}

}  // namespace gradwire
