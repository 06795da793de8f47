#include "core/problem.h"

#include <initializer_list>
#include <limits>

#include "core/text.h"

namespace convx {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// Tensors are addressed in bytes with 64-bit offsets, so no element count may pass this.
constexpr int64_t kMaxElements = kMaxInt64 / 16;

// Kernel, stride, dilation and padding beyond this could overflow sums of index terms; no memory
// holds a tensor that would need them.
constexpr int64_t kMaxParameter = int64_t{1} << 40;

bool product_fits(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t factor : factors) {
    if (factor == 0) return true;
    if (__builtin_mul_overflow(product, factor, &product) || product > kMaxElements) return false;
  }
  return true;
}

std::string pair_text(const char* name, int64_t h, int64_t w) {
  Text out;
  out << name << "=(" << h << ", " << w << ")";
  return out.str();
}

std::string check_parameters(const ConvProblem& p) {
  Text error;
  if (p.stride.h < 1 || p.stride.w < 1) {
    error << "stride must be greater than zero, but got "
          << pair_text("stride", p.stride.h, p.stride.w);
  } else if (p.dilation.h < 1 || p.dilation.w < 1) {
    error << "dilation must be greater than zero, but got "
          << pair_text("dilation", p.dilation.h, p.dilation.w);
  } else if (p.pad.top < 0 || p.pad.bottom < 0 || p.pad.left < 0 || p.pad.right < 0) {
    error << "negative padding is not supported, but got padding=(top " << p.pad.top << ", bottom "
          << p.pad.bottom << ", left " << p.pad.left << ", right " << p.pad.right << ")";
  } else if (p.groups < 1) {
    error << "groups must be greater than zero, but got groups=" << p.groups;
  } else {
    struct Named {
      const char* name;
      int64_t value;
    };
    for (const Named& item : {Named{"stride", p.stride.h}, Named{"stride", p.stride.w},
                              Named{"dilation", p.dilation.h}, Named{"dilation", p.dilation.w},
                              Named{"padding", p.pad.top}, Named{"padding", p.pad.bottom},
                              Named{"padding", p.pad.left}, Named{"padding", p.pad.right}}) {
      if (item.value > kMaxParameter) {
        error << item.name << " is too large: " << item.value << " is above the limit of "
              << kMaxParameter;
        break;
      }
    }
  }
  return error.str();
}

std::string check_channels(const ConvProblem& p, int64_t weight_channels) {
  Text error;
  if (p.K % p.groups != 0) {
    error << "groups must divide the number of filters, but got groups=" << p.groups
          << " and weight.size(0)=" << p.K;
  } else if (p.C % p.groups != 0 || p.C / p.groups != weight_channels) {
    error << "expected input to have weight.size(1)=" << weight_channels
          << " times groups=" << p.groups << " channels, but got input.size(1)=" << p.C;
  }
  return error.str();
}

bool taps_fit(const ConvProblem& p) {
  return p.R <= kMaxParameter && p.S <= kMaxParameter && product_fits({p.dilation.h, p.R}) &&
         product_fits({p.dilation.w, p.S});
}

std::string check_extents(const ConvProblem& p) {
  Text error;
  // As in PyTorch, images may have no pixels if there are no images or no channels.
  const bool needs_pixels = p.N > 0 && p.C > 0;
  if (p.K < 1 || p.R < 1 || p.S < 1) {
    error << "weight must not be empty, but got " << p.K << " filters of " << p.C / p.groups
          << " channels and kernel size (" << p.R << " x " << p.S << ")";
  } else if (needs_pixels && (p.H < 1 || p.W < 1)) {
    error << "input must have a height and a width, but got input of " << p.H << " x " << p.W;
  } else if (!taps_fit(p)) {
    error << "kernel size times dilation overflows: kernel (" << p.R << " x " << p.S << "), "
          << pair_text("dilation", p.dilation.h, p.dilation.w);
  } else if (p.P < 1 || p.Q < 1) {
    error << "kernel size can't be greater than the padded input: padded input is ("
          << p.H + p.pad.top + p.pad.bottom << " x " << p.W + p.pad.left + p.pad.right
          << "), kernel with dilation spans (" << p.dilation.h * (p.R - 1) + 1 << " x "
          << p.dilation.w * (p.S - 1) + 1 << ")";
  } else if (!product_fits({p.N, p.K, p.P, p.Q}) || !product_fits({p.N, p.C, p.H, p.W}) ||
             !product_fits({p.K, p.C, p.R, p.S})) {
    error << "the problem is too large for 64-bit addressing: output would be " << p.N << " x "
          << p.K << " x " << p.P << " x " << p.Q;
  }
  return error.str();
}

}  // namespace

int64_t output_extent(int64_t input, int64_t pad_before, int64_t pad_after, int64_t kernel,
                      int64_t stride, int64_t dilation) {
  const int64_t span = dilation * (kernel - 1) + 1;
  const int64_t room = input + pad_before + pad_after - span;
  return room < 0 ? 0 : room / stride + 1;
}

std::string validate(ConvProblem& p, int64_t weight_channels) {
  if (std::string error = check_parameters(p); !error.empty()) return error;
  if (std::string error = check_channels(p, weight_channels); !error.empty()) return error;
  p.P = p.Q = 0;
  if (p.R > 0 && p.S > 0 && taps_fit(p)) {
    p.P = output_extent(p.H, p.pad.top, p.pad.bottom, p.R, p.stride.h, p.dilation.h);
    p.Q = output_extent(p.W, p.pad.left, p.pad.right, p.S, p.stride.w, p.dilation.w);
  }
  return check_extents(p);
}

double count_flops(const ConvProblem& p) {
  return 2.0 * static_cast<double>(p.N) * static_cast<double>(p.K) * static_cast<double>(p.P) *
         static_cast<double>(p.Q) * static_cast<double>(p.channels_per_group()) *
         static_cast<double>(p.taps());
}

double count_bytes(const ConvProblem& p) {
  const double x = static_cast<double>(p.N) * p.C * p.H * p.W;
  const double w = static_cast<double>(p.K) * p.channels_per_group() * p.taps();
  const double y = static_cast<double>(p.N) * p.K * p.P * p.Q;
  const double residual = p.epilogue.has_residual ? y : 0;
  return (x + w + y + residual) * static_cast<double>(size_of(p.dtype));
}

size_t hash_value(const ConvProblem& p) {
  size_t hash = 0;
  for (int64_t field : {static_cast<int64_t>(p.pass),
                        static_cast<int64_t>(p.dtype),
                        static_cast<int64_t>(p.precision),
                        static_cast<int64_t>(p.epilogue.has_bias),
                        static_cast<int64_t>(p.epilogue.has_residual),
                        static_cast<int64_t>(p.epilogue.activation),
                        p.N,
                        p.C,
                        p.H,
                        p.W,
                        p.K,
                        p.R,
                        p.S,
                        p.groups,
                        p.stride.h,
                        p.stride.w,
                        p.dilation.h,
                        p.dilation.w,
                        p.pad.top,
                        p.pad.bottom,
                        p.pad.left,
                        p.pad.right,
                        p.x_strides.n,
                        p.x_strides.c,
                        p.x_strides.h,
                        p.x_strides.w,
                        p.w_strides.n,
                        p.w_strides.c,
                        p.w_strides.h,
                        p.w_strides.w,
                        p.y_strides.n,
                        p.y_strides.c,
                        p.y_strides.h,
                        p.y_strides.w}) {
    // The golden-ratio mix of boost::hash_combine.
    hash ^= static_cast<size_t>(field) + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
  }
  return hash;
}

ConvProblem drop_unused_strides(ConvProblem p) {
  const auto drop = [](Strides& s, int64_t n, int64_t c, int64_t h, int64_t w) {
    if (n == 1) s.n = 0;
    if (c == 1) s.c = 0;
    if (h == 1) s.h = 0;
    if (w == 1) s.w = 0;
  };
  drop(p.x_strides, p.N, p.C, p.H, p.W);
  drop(p.w_strides, p.K, p.channels_per_group(), p.R, p.S);
  drop(p.y_strides, p.N, p.K, p.P, p.Q);
  return p;
}

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
      return 8;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
  }
  return 0;
}

int64_t accumulate_bytes(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  return "unknown";
}

const char* name_of(Precision precision) { return precision == Precision::kTf32 ? "tf32" : "ieee"; }

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kRelu:
      return "relu";
    case Activation::kRelu6:
      return "relu6";
    case Activation::kLeakyRelu:
      return "leaky_relu";
    case Activation::kSilu:
      return "silu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu_tanh";
    case Activation::kSigmoid:
      return "sigmoid";
    case Activation::kTanh:
      return "tanh";
    case Activation::kHardswish:
      return "hardswish";
    case Activation::kHardsigmoid:
      return "hardsigmoid";
    case Activation::kMish:
      return "mish";
  }
  return "unknown";
}

const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "forward";
    case Pass::kInputGrad:
      return "input_grad";
    case Pass::kWeightGrad:
      return "weight_grad";
  }
  return "unknown";
}

Strides contiguous_strides(int64_t c, int64_t h, int64_t w) { return {c * h * w, h * w, w, 1}; }

Strides channels_last_strides(int64_t c, int64_t h, int64_t w) { return {h * w * c, 1, w * c, c}; }

bool is_channels_last(int64_t n, int64_t c, int64_t h, int64_t w, const Strides& strides) {
  if (strides.c == 0) return false;
  int64_t smallest = 0;
  struct Axis {
    int64_t size, stride;
  };
  for (const Axis& axis : {Axis{c, strides.c}, Axis{w, strides.w}, Axis{h, strides.h}}) {
    if (axis.size == 0 || axis.stride < smallest) return false;
    smallest = axis.stride * (axis.size > 1 ? axis.size : 1);
  }
  if (n == 0 || strides.n < smallest) return false;
  // With one channel or one pixel both orders fit, and PyTorch reports contiguous.
  return smallest != strides.c;
}

std::string to_text(const ConvProblem& p) {
  Text out;
  out << "n" << p.N << "c" << p.C << "h" << p.H << "w" << p.W << " k" << p.K << "r" << p.R << "s"
      << p.S << " stride" << p.stride.h << "x" << p.stride.w << " pad" << p.pad.top << ","
      << p.pad.bottom << "," << p.pad.left << "," << p.pad.right << " dilation" << p.dilation.h
      << "x" << p.dilation.w << " groups" << p.groups << " " << name_of(p.dtype);
  if (p.epilogue.has_residual) out << " residual";
  if (p.epilogue.activation != Activation::kNone) out << " " << name_of(p.epilogue.activation);
  return out.str();
}

std::string describe(const ConvProblem& p) {
  Text out;
  const auto list = [&](const char* name, std::initializer_list<int64_t> values) {
    out << ", \"" << name << "\": ";
    write_list(out, values, [&](int64_t value) { out << value; });
  };
  const auto strides = [&](const char* name, const Strides& s) {
    list(name, {s.n, s.c, s.h, s.w});
  };
  out << "{\"direction\": " << quote(name_of(p.pass)) << ", \"dtype\": " << quote(name_of(p.dtype))
      << ", \"precision\": " << quote(name_of(p.precision))
      << ", \"bias\": " << (p.epilogue.has_bias ? "true" : "false")
      << ", \"residual\": " << (p.epilogue.has_residual ? "true" : "false")
      << ", \"activation\": " << quote(name_of(p.epilogue.activation))
      << ", \"negative_slope\": " << p.epilogue.slope << ", \"groups\": " << p.groups;
  list("input", {p.N, p.C, p.H, p.W});
  list("weight", {p.K, p.channels_per_group(), p.R, p.S});
  list("output", {p.N, p.K, p.P, p.Q});
  list("stride", {p.stride.h, p.stride.w});
  list("padding", {p.pad.top, p.pad.bottom, p.pad.left, p.pad.right});
  list("dilation", {p.dilation.h, p.dilation.w});
  strides("input_stride", p.x_strides);
  strides("weight_stride", p.w_strides);
  strides("output_stride", p.y_strides);
  out << "}";
  return out.str();
}

}  // namespace convx
