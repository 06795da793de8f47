// Depthwise convolutions of channels_last tensors in cpu_direct, without staging: with one channel
// per group and contiguous channels, vectors run over channels.
//
// Plan::tile: m channels and n rows (of the target lattice, or of y in the weight gradient) per
// task. Plan::split: split-K slices of the rows of all images, in the weight gradient. Tile and
// split depend only on the problem.
#pragma once

#include "core/device_caps.h"
#include "core/gather_view.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/task_runner.h"

namespace convx {

struct ChannelwiseGeometry {
  Tile tile;
  int64_t split = 1;
  GatherView view;  // not in the weight gradient

  void describe(Text& out) const;
};

bool is_channelwise(const ConvProblem& problem);

Plan plan_channelwise(const ConvProblem& problem, const DeviceCaps& caps);

void launch_channelwise(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                        const TaskRunner& runner);

}  // namespace convx
