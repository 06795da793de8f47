// Steps that the searches for the geometries of both MMA kernels share.
#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda/weight_grad/wgrad_fit.h"

namespace convx {

WgradGeometry describe_problem(const ConvProblem& p) {
  WgradGeometry g{};
  g.images = narrow(p.N), g.height = narrow(p.H), g.width = narrow(p.W);
  g.out_height = narrow(p.P), g.out_width = narrow(p.Q);
  g.channels = narrow(p.C), g.filters = narrow(p.K);
  g.group_channels = narrow(p.channels_per_group());
  g.group_filters = narrow(p.filters_per_group());
  g.kernel_rows = narrow(p.R), g.kernel_columns = narrow(p.S);
  g.by_kernel_rows = FastDivmod(p.R), g.by_kernel_columns = FastDivmod(p.S);
  g.by_group_channels = FastDivmod(p.channels_per_group());
  g.by_group_filters = FastDivmod(p.filters_per_group());
  g.stride_h = narrow(p.stride.h), g.stride_w = narrow(p.stride.w);
  g.pad_top = narrow(p.pad.top), g.pad_left = narrow(p.pad.left);
  g.dilation_h = narrow(p.dilation.h), g.dilation_w = narrow(p.dilation.w);
  g.x_strides = p.x_strides, g.y_strides = p.y_strides, g.w_strides = p.w_strides;
  g.row_tiles.channel_sets = 1;
  return g;
}

void flatten_images(const ConvProblem& p, WgradGeometry& g) {
  if (p.taps() > 1 || p.stride != Hw{1, 1} || p.H != p.P || p.W != p.Q) return;
  if (p.pad.top != 0 || p.pad.left != 0) return;
  if (p.x_strides.h != p.W || p.y_strides.h != p.Q) return;
  g.height = g.out_height = 1;
  g.width = g.out_width = static_cast<int>(p.P * p.Q);
  g.x_strides.h = p.x_strides.c, g.y_strides.h = p.y_strides.c;
}

// Partial sums of every element of dW must fit, so that counts of tiles fit 32 bits as well.
bool has_room_for_sums(const ConvProblem& p, const DeviceCaps& caps) {
  const double elements = static_cast<double>(p.K) * static_cast<double>(p.C) *
                          static_cast<double>(p.taps()) / static_cast<double>(p.groups);
  return 4 * elements <= static_cast<double>(caps.workspace_limit);
}

void count_filter_blocks(const ConvProblem& p, WgradGeometry& g) {
  g.filter_blocks = static_cast<int>(ceil_div(p.K, g.block_filter_tiles * kTileFilters));
  g.filter_tiles = g.filter_blocks * g.block_filter_tiles;
}

void count_channel_blocks(const ConvProblem& p, WgradGeometry& g) {
  const int64_t block_channels = int64_t{g.block_channel_tiles} * g.atom_channels;
  if (p.groups == 1) {
    g.channel_blocks = static_cast<int>(ceil_div(g.packed_channels, block_channels));
    g.channel_tiles = g.channel_blocks * g.block_channel_tiles;
  } else {
    const int64_t block_filters = g.block_filter_tiles * kTileFilters;
    g.channel_blocks = 1, g.channel_tiles = 0;
    for (int64_t first = 0; first < p.K; first += block_filters) {
      const int64_t last = std::min(first + block_filters, p.K) - 1;
      const int64_t tile = first / g.group_filters * g.group_channels / g.atom_channels;
      const int64_t end = (last / g.group_filters + 1) * g.group_channels;
      const int64_t blocks = ceil_div(end - tile * g.atom_channels, block_channels);
      g.channel_blocks = std::max(g.channel_blocks, static_cast<int>(blocks));
      g.channel_tiles =
          std::max(g.channel_tiles, static_cast<int>(tile + blocks * g.block_channel_tiles));
    }
  }
  g.channel_blocks = static_cast<int>(round_up(g.channel_blocks, g.row_tiles.channel_sets));
}

void set_block_divisors(WgradGeometry& g) {
  g.by_block_filter_tiles = FastDivmod(g.block_filter_tiles);
  g.by_block_channel_tiles = FastDivmod(g.block_channel_tiles);
  g.by_channel_blocks = FastDivmod(g.channel_blocks);
}

bool reserve_store(const DeviceCaps& caps, int matrices, WgradGeometry& g) {
  g.writes_result = true;
  g.staged_row = (g.columns + g.atoms() * kStagedAtomGap + 7) / 16 * 16 + 8;
  const int64_t staged = int64_t{4} * matrices * kTileFilters * g.staged_row;
  g.table_offset = static_cast<int>(std::max<int64_t>(g.shared_bytes - 1024, 1024 + staged));
  g.shared_bytes = 1024 + g.table_offset + g.table_bytes();
  return g.shared_bytes <= caps.shared_bytes_per_block;
}

// Tap groups of a block have the same residue, so that one ring of X' serves them.
void group_blocks(WgradGeometry& g) {
  g.group_blocks = 0;
  for (int i = 0, first = 0; i <= g.group_count; ++i) {
    const bool ends = i == g.group_count || i - first == g.block_tap_groups ||
                      g.groups[i].residue != g.groups[first].residue;
    if (i == 0 || !ends) continue;
    g.block_groups[g.group_blocks++] = static_cast<short>(first);
    first = i;
  }
  g.block_groups[g.group_blocks] = static_cast<short>(g.group_count);
  g.by_group_blocks = FastDivmod(g.group_blocks);
}

}  // namespace convx
