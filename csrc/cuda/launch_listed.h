// Finds the kernel that is compiled for a plan's tile.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>

#include "cuda/check.h"

namespace convx {

// Calls launch.operator()<kTile>() for the entry of kTiles that equals `tile`.
template <const auto& kTiles, typename Tile, typename Launch>
void launch_listed(const LaunchSite& site, const Tile& tile, const Launch& launch) {
  const auto launch_if = [&]<size_t kIndex>() {
    if (kTiles[kIndex] != tile) return false;
    launch.template operator()<kTiles[kIndex]>();
    return true;
  };
  const bool is_compiled = [&]<size_t... kIndices>(std::index_sequence<kIndices...>) {
    return (launch_if.template operator()<kIndices>() || ...);
  }(std::make_index_sequence<std::size(kTiles)>());
  if (!is_compiled) throw_launch_error(site, "choosing a kernel", "no such tile");
}

}  // namespace convx
