// What the binding sees of the engines: their lists, and the launch side of each device.
#pragma once

#include <span>

#include "core/engine.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/task_runner.h"

namespace convx {

// The engines of each device, in the order in which explain() lists them.
std::span<const Engine> cpu_engines();
std::span<const Engine> cuda_engines();

// Runs a planned problem. plan.workspace_bytes was made for runner.slots slots.
void launch_cpu(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                const TaskRunner& runner);

// grad_bias[k] = sum over n, p, q of y[n][k][p][q], in an order that depends on the extents only.
void cpu_bias_grad(const ConvProblem& problem, const void* y, void* grad_bias,
                   const TaskRunner& runner);

// Width in bytes of the vector registers the CPU engines use on this machine.
int cpu_simd_bytes();

// The caller has made the tensors' device current.
struct CudaContext {
  void* stream = nullptr;  // cudaStream_t to launch on
  // Returns the cublasHandle_t bound to that stream. Only engines that need it call this, because
  // it takes a microsecond. They restore the handle's math mode.
  void* (*get_blas)() = nullptr;
};

// Enqueues a planned problem and returns without waiting. Throws std::runtime_error that names the
// engine, the problem and the CUDA or cuBLAS status if anything cannot be launched.
void launch_cuda(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                 const CudaContext& context);

// grad_bias[k] = sum over n, p, q of y[n][k][p][q], in an order that depends on nothing but the
// extents and strides of y and its address modulo 16 bytes.
// workspace holds cuda_bias_grad_workspace_bytes(problem) bytes.
int64_t cuda_bias_grad_workspace_bytes(const ConvProblem& problem);
void cuda_bias_grad(const ConvProblem& problem, const void* y, void* grad_bias, void* workspace,
                    const CudaContext& context);

}  // namespace convx
