// The instruction sets for which the code that measures a block of elements (blocks.inc) is compiled, and the choice among them at
// run time. One binary serves every processor of an architecture: no compiler option depends on the machine that builds the binary.
#include "blocks.hpp"

#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "scalar.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hooks {
namespace {

// Sets whether the processor treats subnormals as zeros; the destructor restores the previous mode.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  static constexpr unsigned kBits = 0x8040;  // the bits FTZ (results) and DAZ (operands) of MXCSR
  explicit FlushSubnormals(bool flush) : before_(_mm_getcsr()) {
    const unsigned wanted = flush ? before_ | kBits : before_ & ~kBits;
    changed_ = wanted != before_;
    if (changed_) _mm_setcsr(wanted);
  }
  ~FlushSubnormals() {
    if (changed_) _mm_setcsr(before_);
  }

 private:
  unsigned before_;
  bool changed_;
#elif defined(__aarch64__)
  explicit FlushSubnormals(bool flush) {
    constexpr std::uint64_t bit = 1 << 24;
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    const std::uint64_t wanted = flush ? before_ | bit : before_ & ~bit;
    changed_ = wanted != before_;
    if (changed_) asm volatile("msr fpcr, %0" : : "r"(wanted));
  }
  ~FlushSubnormals() {
    if (changed_) asm volatile("msr fpcr, %0" : : "r"(before_));
  }

 private:
  std::uint64_t before_;
  bool changed_;
#else
  explicit FlushSubnormals(bool) {}
#endif
};

}  // namespace
}  // namespace hooks

#if defined(__x86_64__)

#if defined(__clang__)
#define HOOKS_PUSH(names) _Pragma(HOOKS_TEXT(clang attribute push(__attribute__((target(names))), apply_to = function)))
#define HOOKS_POP _Pragma("clang attribute pop")
#else
#define HOOKS_PUSH(names) _Pragma("GCC push_options") _Pragma(HOOKS_TEXT(GCC target(names)))
#define HOOKS_POP _Pragma("GCC pop_options")
#endif
#define HOOKS_TEXT(...) #__VA_ARGS__

#define HOOKS_TARGET avx512
#define HOOKS_BYTES 64
#define HOOKS_HALF(p) reinterpret_cast<Floats::vec>(_mm512_maskz_cvtph_ps(0xffff, read<__m256i>(p)))
#define HOOKS_DOUBLES(x) reinterpret_cast<Doubles::vec>(_mm512_maskz_cvtps_pd(0xff, reinterpret_cast<__m256>(x)))
// The immediate operand 2 | 8 selects the operand of lesser magnitude (2) and clears its sign (8).
#define HOOKS_LESSER(a, b) reinterpret_cast<Floats::vec>(_mm512_range_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), 2 | 8))
// Counts the lanes whose exponent bits are zero in `count`, and joins the bits of these lanes into `marks` by `or`.
#define HOOKS_NOTE_SMALL(bits, count, marks)                                                                          \
  const __mmask16 found = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));                                 \
  count = reinterpret_cast<Floats::ivec>(                                                                             \
      _mm512_mask_add_epi32(reinterpret_cast<__m512i>(count), found, reinterpret_cast<__m512i>(count), _mm512_set1_epi32(1))); \
  marks = reinterpret_cast<Floats::ivec>(                                                                             \
      _mm512_mask_or_epi32(reinterpret_cast<__m512i>(marks), found, reinterpret_cast<__m512i>(marks), bits))
#define HOOKS_NOTE_ZEROS(bits, count)                                                                                  \
  count = reinterpret_cast<Floats::ivec>(                                                                             \
      _mm512_mask_add_epi32(reinterpret_cast<__m512i>(count), _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7fffffff)), \
                            reinterpret_cast<__m512i>(count), _mm512_set1_epi32(1)))
#define HOOKS_ANY(lanes) (_mm512_test_epi32_mask(reinterpret_cast<__m512i>(lanes), reinterpret_cast<__m512i>(lanes)) != 0)
HOOKS_PUSH("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt")
#include "blocks.inc"
HOOKS_POP
#undef HOOKS_TARGET
#undef HOOKS_BYTES
#undef HOOKS_HALF
#undef HOOKS_DOUBLES
#undef HOOKS_LESSER
#undef HOOKS_NOTE_SMALL
#undef HOOKS_NOTE_ZEROS
#undef HOOKS_ANY

#define HOOKS_TARGET avx2
#define HOOKS_BYTES 32
#define HOOKS_HALF(p) reinterpret_cast<Floats::vec>(_mm256_cvtph_ps(read<__m128i>(p)))
#define HOOKS_DOUBLES(x) reinterpret_cast<Doubles::vec>(_mm256_cvtps_pd(reinterpret_cast<__m128>(x)))
#define HOOKS_ANY(lanes) (!_mm256_testz_si256(reinterpret_cast<__m256i>(lanes), reinterpret_cast<__m256i>(lanes)))
HOOKS_PUSH("avx2,fma,f16c,bmi,bmi2,popcnt")
#include "blocks.inc"
HOOKS_POP
#undef HOOKS_TARGET
#undef HOOKS_BYTES
#undef HOOKS_HALF
#undef HOOKS_DOUBLES
#undef HOOKS_ANY

#endif

// The baseline of the architecture: vectors of sixteen bytes.
#define HOOKS_TARGET baseline
#define HOOKS_BYTES 16
#if defined(__aarch64__)
#define HOOKS_HALF(p) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&(p)->bits)))
#else
#define HOOKS_HALF(p) widen(read<shorts>(p))
#endif
#include "blocks.inc"

namespace hooks {

namespace {

#if defined(__x86_64__)
// Whether the processor has all extensions of the HOOKS_PUSH of the avx2 code, and of the avx512 code.
struct Extensions {
  bool avx2, avx512;
};
// Reads the features with cpuid, because __builtin_cpu_supports needs a runtime library that not every Clang links.
Extensions extensions() {
  constexpr unsigned kFma = 1u << 12, kPopcnt = 1u << 23, kOsxsave = 1u << 27, kF16c = 1u << 29;  // bits of ecx in leaf 1
  constexpr unsigned kBmi = 1u << 3, kAvx2 = 1u << 5, kBmi2 = 1u << 8;  // bits of ebx in leaf 7
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // bits of ebx in leaf 7: F, DQ, BW, VL
  constexpr unsigned kYmm = 0x6, kZmm = 0xe6;  // bits of XCR0: the registers that the operating system saves
  const auto all = [](unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; };
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !all(c, kFma | kPopcnt | kOsxsave | kF16c)) return {false, false};
  unsigned saved, high;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !all(b, kBmi | kAvx2 | kBmi2) || !all(saved, kYmm)) return {false, false};
  return {true, all(b, kAvx512) && all(saved, kZmm)};
}
#endif

std::vector<Blocks> supported() {
  std::vector<Blocks> out;
#if defined(__x86_64__)
  const auto [has_avx2, has_avx512] = extensions();
  if (has_avx512) out.push_back({"avx512", avx512::measure, avx512::count, avx512::subtract, avx512::products, avx512::columns, avx512::runs});
  if (has_avx2) out.push_back({"avx2", avx2::measure, avx2::count, avx2::subtract, avx2::products, avx2::columns, avx2::runs});
#endif
  out.push_back({"baseline", baseline::measure, baseline::count, baseline::subtract, baseline::products, baseline::columns, baseline::runs});
  return out;
}

const std::vector<Blocks>& known() {
  static const std::vector<Blocks> found = supported();
  return found;
}
std::atomic<const Blocks*> chosen{nullptr};

}  // namespace

const Blocks& blocks() {
  const Blocks* const asked = chosen.load(std::memory_order_relaxed);
  return asked ? *asked : known().front();
}

bool choose_blocks(const char* name) {
  for (const Blocks& one : known()) {
    if (std::strcmp(one.name, name) != 0) continue;
    chosen = &one;
    return true;
  }
  return false;
}

}  // namespace hooks
