// The memory of the elements of a tensor, in the order that is fastest to read: moments do not depend on the order.
#pragma once

#include <cstdint>
#include <vector>

#include "row.hpp"

namespace hooks {

struct Dim {
  std::int64_t size, stride;
};

struct View {
  const char* data = nullptr;
  Kind kind = Kind::f32;
  std::int64_t numel = 0;   // elements to read
  double copies = 1;        // how often each of them occurs in the tensor: an expanded tensor repeats its elements
  // The elements to subtract, with the same layout as `data`: both contiguous, of the kind `stored`. The differences of sixteen-bit
  // floats are float32, which is then `kind`. Null where nothing is subtracted.
  const char* minus = nullptr;
  Kind stored = Kind::f32;
  bool sized = true;         // whether the sum of magnitudes is requested; if not, it is NaN
  double* counts = nullptr;  // the buckets of its histogram, or null
  std::vector<Dim> gaps;     // empty where the elements are contiguous; else the dimensions, innermost first

  // Sizes and strides are in elements.
  void lay_out(const std::int64_t* shape, const std::int64_t* strides, int ndim);

  // Elements [begin, begin + n), contiguous: in place, or copied into the buffer (kBlock elements of eight bytes).
  const void* block(std::int64_t begin, int n, void* buffer) const;
};

inline int size_of(Kind kind) { return kind == Kind::f64 ? 8 : kind == Kind::f32 ? 4 : 2; }

}  // namespace hooks
