// The CUDA kernels of the operators that register_cpu.cpp defines.
#include "torch/backend.h"
#include "torch/ops.h"

STABLE_TORCH_LIBRARY_FRAGMENT(convx, m) {
  m.def("_engines_cuda() -> str");
  m.def("_explain_cuda" CONVX_PROBLEM_ARGUMENTS " -> str");
  m.def("_prefer_cuda" CONVX_PROBLEM_ARGUMENTS " -> ()");
  m.def("_record_cuda(bool on) -> str");
  m.def("_autotune_cuda(bool on) -> bool");
  m.def("_set_cuda_workspace_limit(int bytes) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(convx, CUDA, m) { convx::implement_ops(m); }

STABLE_TORCH_LIBRARY_IMPL(convx, CompositeExplicitAutograd, m) {
  m.impl("_engines_cuda", TORCH_BOX(&convx::run_engines));
  m.impl("_explain_cuda", TORCH_BOX(&convx::run_about_problem<&convx::run_explain>));
  m.impl("_prefer_cuda", TORCH_BOX(&convx::run_about_problem<&convx::run_prefer>));
  m.impl("_record_cuda", TORCH_BOX(&convx::run_record));
  m.impl("_autotune_cuda", TORCH_BOX(&convx::run_autotune));
  m.impl("_set_cuda_workspace_limit", TORCH_BOX(&convx::set_workspace_limit));
}
