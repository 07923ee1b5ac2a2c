// The memory of the elements of a tensor, in the order that is fastest to read. Moments do not depend on the order.
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
  double copies = 1;        // how often each element occurs in the tensor: an expanded tensor repeats its elements
  // The elements to subtract, or null. Both `data` and `minus` are then contiguous and of the kind `stored`, and `kind` is that of
  // the differences: float32 for sixteen-bit floats.
  const char* minus = nullptr;
  Kind stored = Kind::f32;
  bool sized = true;         // whether the sum of magnitudes is requested; if not, the row has NaN for it
  double* counts = nullptr;  // the kBuckets buckets of the tensor's histogram, or null if none is requested
  std::vector<Dim> gaps;     // the size and stride of each dimension, innermost first; empty if the elements are contiguous

  // Sets `numel`, `copies` and `gaps` from a shape and from strides in elements.
  void lay_out(const std::int64_t* shape, const std::int64_t* strides, int ndim);

  // Returns a pointer to the elements [begin, begin + n), which are contiguous: in the tensor itself if it has no gaps, else in a
  // copy in `buffer`, which must have room for kBlock elements of eight bytes.
  const void* block(std::int64_t begin, int n, void* buffer) const;
};

inline int size_of(Kind kind) { return kind == Kind::f64 ? 8 : kind == Kind::f32 ? 4 : 2; }

}  // namespace hooks
