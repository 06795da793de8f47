// Depthwise convolutions of channels_last tensors, the part of cpu_direct that uses no staging:
// with one channel per group and neighbouring channels in memory, vectors run over channels.
//
// Plan::tile: m channels and n rows (of the target lattice, or of y for the weight gradient) per
// task. Plan::split: parts the rows of all images are cut into for the weight gradient; it and the
// tile depend on the problem alone. Plan::shape: the gather view, for the other passes.
#pragma once

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/task_runner.h"

namespace convx {

bool is_channelwise(const ConvProblem& problem);

Plan plan_channelwise(const ConvProblem& problem, const DeviceCaps& caps);

void launch_channelwise(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                        const TaskRunner& runner);

}  // namespace convx
