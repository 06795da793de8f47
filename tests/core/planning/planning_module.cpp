// The planning side alone as a Python module, to be compiled and timed as it is in the wheel.
#include "bind_choice.h"
#include "bind_problem.h"

PYBIND11_MODULE(convx_planning, m) {
  bind_problem(m);
  bind_choice(m);
}
