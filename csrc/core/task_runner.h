// Threads for the CPU engines, provided by the caller.
#pragma once

#include <atomic>
#include <cstdint>

namespace convx {

// Calls body(context, slot) once for every slot in [0, slots), on as many threads as are available,
// and returns when all calls are done.
struct TaskRunner {
  int slots = 1;
  void (*run)(int slots, void (*body)(void* context, int slot),
              void* context) = [](int slots, void (*body)(void*, int), void* context) {
    for (int slot = 0; slot < slots; ++slot) body(context, slot);
  };
};

// Runs task(slot, index) for every index in [0, tasks). A slot runs one task at a time, so it may
// own a slice of the workspace. Which slot gets which task varies between runs: tasks must write
// disjoint outputs that do not depend on it, which is what keeps results reproducible.
template <typename Task>
void run_tasks(const TaskRunner& runner, int64_t tasks, const Task& task) {
  struct Context {
    const Task& task;
    int64_t tasks;
    std::atomic<int64_t> next{0};
  } context{task, tasks};
  const int slots = static_cast<int>(tasks < runner.slots ? tasks : runner.slots);
  if (slots < 1) return;
  runner.run(
      slots,
      [](void* opaque, int slot) {
        auto& c = *static_cast<Context*>(opaque);
        for (int64_t i = c.next++; i < c.tasks; i = c.next++) c.task(slot, i);
      },
      &context);
}

}  // namespace convx
