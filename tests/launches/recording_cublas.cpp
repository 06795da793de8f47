// cuBLAS in place of the library's, for recording_runtime.cpp. Its headers are left out, so that the
// functions need no parameters that they do not read.
#include <cstring>

#include "recording_runtime.h"

namespace {

constexpr int kProposalBytes = 96;  // cublasLtMatmulHeuristicResult_t

int note_product() {
  launched.push_back("cublas");
  return 0;
}

}  // namespace

extern "C" {

int cublasGetMathMode(void*, int* mode) { return *mode = 0; }
int cublasSetMathMode(void*, int) { return 0; }
int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0; }
int cublasSetPointerMode_v2(void*, int) { return 0; }
const char* cublasGetStatusString(int) { return ""; }
int cublasGemmStridedBatchedEx() { return note_product(); }

int cublasLtMatrixLayoutInit_internal() { return 0; }
int cublasLtMatrixLayoutSetAttribute() { return 0; }
int cublasLtMatmulDescInit_internal() { return 0; }
int cublasLtMatmulDescSetAttribute() { return 0; }
int cublasLtMatmulPreferenceInit_internal() { return 0; }
int cublasLtMatmulPreferenceSetAttribute() { return 0; }
int cublasLtMatmul() { return note_product(); }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted,
                                   void* proposals, int* found) {
  std::memset(proposals, 0, static_cast<size_t>(wanted) * kProposalBytes);
  *found = wanted;
  return 0;
}
}
