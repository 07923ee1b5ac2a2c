// Scalar conversions of the four element types.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace hooks {

struct Half {
  std::uint16_t bits;
};
struct BFloat {
  std::uint16_t bits;
};

inline double to_double(double x) { return x; }
inline double to_double(float x) { return x; }
inline double to_double(BFloat x) {
  const std::uint32_t wide = std::uint32_t(x.bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}
inline double to_double(Half x) {
  const std::uint64_t magnitude = x.bits & 0x7fff, sign = std::uint64_t(x.bits & 0x8000) << 48;
  if (magnitude < 0x400) return (sign ? -0x1p-24 : 0x1p-24) * static_cast<double>(magnitude);
  const std::uint64_t bias = magnitude < 0x7c00 ? 1008 : 2016;  // float64 exponent minus float16 exponent: 1023 - 15, or 2047 - 31
  const std::uint64_t wide = sign | ((magnitude << 42) + (bias << 52));
  double out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}

template <class S>
constexpr double smallest_normal();
template <>
constexpr double smallest_normal<float>() { return 0x1p-126; }
template <>
constexpr double smallest_normal<BFloat>() { return 0x1p-126; }
template <>
constexpr double smallest_normal<Half>() { return 0x1p-14; }
template <>
constexpr double smallest_normal<double>() { return 0x1p-1022; }

}  // namespace hooks
