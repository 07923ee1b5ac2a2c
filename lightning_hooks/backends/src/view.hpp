// Where the elements of a tensor lie, in the order that is quickest to read: for moments no order is better than another.
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
  double copies = 1;        // how often each of them stands in the tensor: an expanded tensor repeats itself
  // What is taken away from each element before it is looked at, laid out as `data` is: both without gaps, of the kind
  // `stored`. The differences of sixteen-bit floats are float32, which `kind` then says. Null where nothing is.
  const char* minus = nullptr;
  Kind stored = Kind::f32;
  bool sized = true;         // whether the sum of magnitudes is asked for; NaN in its place if not
  double* counts = nullptr;  // where its histogram goes, if that is wanted
  std::vector<Dim> gaps;     // empty where the elements lie side by side; else the dimensions, innermost first

  // Reads sizes and strides in elements, as torch gives them.
  void lay_out(const std::int64_t* shape, const std::int64_t* strides, int ndim);

  // Elements begin to begin + n side by side: in place, or copied into the buffer (kBlock elements of eight bytes).
  const void* block(std::int64_t begin, int n, void* buffer) const;
};

inline int size_of(Kind kind) { return kind == Kind::f64 ? 8 : kind == Kind::f32 ? 4 : 2; }

}  // namespace hooks
