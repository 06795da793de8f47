#include "bind_problem.h"

#include "buffers_at.h"

#include <pybind11/stl.h>

#include "core/device_caps.h"
#include "core/problem.h"

namespace py = pybind11;
using namespace convx;

void bind_problem(py::module_& m) {
  py::enum_<Pass>(m, "Pass")
      .value("forward", Pass::kForward)
      .value("input_grad", Pass::kInputGrad)
      .value("weight_grad", Pass::kWeightGrad);
  py::enum_<DType>(m, "DType")
      .value("float32", DType::kFloat32)
      .value("float64", DType::kFloat64)
      .value("float16", DType::kFloat16)
      .value("bfloat16", DType::kBFloat16);
  py::enum_<Precision>(m, "Precision")
      .value("ieee", Precision::kIeee)
      .value("tf32", Precision::kTf32);

  py::class_<Hw>(m, "Hw").def(py::init<int64_t, int64_t>());
  py::class_<Padding>(m, "Padding").def(py::init<int64_t, int64_t, int64_t, int64_t>());
  py::class_<Strides>(m, "Strides")
      .def(py::init<int64_t, int64_t, int64_t, int64_t>())
      .def_readwrite("h", &Strides::h)
      .def_readwrite("w", &Strides::w)
      .def("tuple", [](const Strides& s) { return py::make_tuple(s.n, s.c, s.h, s.w); });
  py::class_<ConvProblem>(m, "ConvProblem")
      .def(py::init<>())
      .def_readwrite("pass_", &ConvProblem::pass)
      .def_readwrite("dtype", &ConvProblem::dtype)
      .def_readwrite("precision", &ConvProblem::precision)
      .def_property(
          "has_bias", [](const ConvProblem& p) { return p.epilogue.has_bias; },
          [](ConvProblem& p, bool has_bias) { p.epilogue.has_bias = has_bias; })
      .def("fuse",
           [](ConvProblem& p, const std::string& activation, double slope, uintptr_t residual) {
             p.epilogue.activation = Activation::kNone;
             for (Activation known : kActivations) {
               if (activation == name_of(known)) p.epilogue.activation = known;
             }
             p.epilogue.slope = slope;
             p.epilogue.has_residual = residual != 0;
             residual_address = residual;
           })
      .def_readwrite("N", &ConvProblem::N)
      .def_readwrite("C", &ConvProblem::C)
      .def_readwrite("H", &ConvProblem::H)
      .def_readwrite("W", &ConvProblem::W)
      .def_readwrite("K", &ConvProblem::K)
      .def_readwrite("R", &ConvProblem::R)
      .def_readwrite("S", &ConvProblem::S)
      .def_readwrite("P", &ConvProblem::P)
      .def_readwrite("Q", &ConvProblem::Q)
      .def_readwrite("groups", &ConvProblem::groups)
      .def_readwrite("stride", &ConvProblem::stride)
      .def_readwrite("dilation", &ConvProblem::dilation)
      .def_readwrite("pad", &ConvProblem::pad)
      .def_readwrite("x_strides", &ConvProblem::x_strides)
      .def_readwrite("w_strides", &ConvProblem::w_strides)
      .def_readwrite("y_strides", &ConvProblem::y_strides)
      .def("__eq__", [](const ConvProblem& a, const ConvProblem& b) { return a == b; });
  py::class_<DeviceCaps>(m, "DeviceCaps")
      .def(py::init<>())
      .def_readwrite("threads", &DeviceCaps::threads)
      .def_readwrite("simd_bytes", &DeviceCaps::simd_bytes)
      .def_readwrite("sm_count", &DeviceCaps::sm_count)
      .def_readwrite("compute_major", &DeviceCaps::compute_major)
      .def_readwrite("wgmma", &DeviceCaps::wgmma)
      .def_readwrite("code_arch", &DeviceCaps::code_arch)
      .def_readwrite("compute_minor", &DeviceCaps::compute_minor)
      .def_readwrite("shared_bytes_per_block", &DeviceCaps::shared_bytes_per_block)
      .def_readwrite("workspace_limit", &DeviceCaps::workspace_limit);

  m.def("validate", [](ConvProblem& problem, int64_t weight_channels) {
    return validate(problem, weight_channels);
  });
  m.def("output_extent", &output_extent);
  m.def("to_text", &to_text);
  m.def("count_flops", &count_flops);
  m.def("count_bytes", &count_bytes);
  m.def("hash_value", &hash_value);
  m.def("is_channels_last", py::overload_cast<int64_t, int64_t, int64_t, int64_t, const Strides&>(
                                &is_channels_last));
  m.def("contiguous_strides", &contiguous_strides);
  m.def("channels_last_strides", &channels_last_strides);
}
