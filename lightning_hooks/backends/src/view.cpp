#include "view.hpp"

#include <algorithm>
#include <cstring>

namespace hooks {
namespace {

template <class T>
void gather(const View& view, std::int64_t begin, int n, T* out) {
  const T* const data = reinterpret_cast<const T*>(view.data);
  const Dim inner = view.gaps[0];
  for (int done = 0; done < n;) {
    std::int64_t index = begin + done, offset = 0;
    const std::int64_t column = index % inner.size;
    index /= inner.size;
    for (std::size_t d = 1; d < view.gaps.size(); ++d) {
      offset += index % view.gaps[d].size * view.gaps[d].stride;
      index /= view.gaps[d].size;
    }
    const int run = static_cast<int>(std::min<std::int64_t>(inner.size - column, n - done));
    const T* from = data + offset + column * inner.stride;
    if (inner.stride == 1) {
      std::memcpy(out + done, from, static_cast<std::size_t>(run) * sizeof(T));
    } else {
      for (int i = 0; i < run; ++i) out[done + i] = from[i * inner.stride];
    }
    done += run;
  }
}

}  // namespace

void View::lay_out(const std::int64_t* shape, const std::int64_t* strides, int ndim) {
  numel = 1;
  copies = 1;
  gaps.clear();
  bool plain = true;  // whether the tensor is contiguous, as most are
  for (int d = ndim - 1; d >= 0; --d) {
    plain = plain && (shape[d] == 1 || !strides || strides[d] == numel);
    numel *= shape[d];
  }
  if (plain || numel == 0) return;
  numel = 1;
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] == 1) continue;
    if (strides[d] == 0) {
      copies *= static_cast<double>(shape[d]);
    } else {
      gaps.push_back({shape[d], strides[d]});
      numel *= shape[d];
    }
  }
  std::sort(gaps.begin(), gaps.end(), [](Dim a, Dim b) { return a.stride < b.stride; });
  // Merge dimensions that have no gap between them; `kept` counts the dimensions that remain.
  std::size_t kept = 0;
  for (const Dim dim : gaps) {
    if (kept && dim.stride == gaps[kept - 1].size * gaps[kept - 1].stride) {
      gaps[kept - 1].size *= dim.size;
    } else {
      gaps[kept++] = dim;
    }
  }
  gaps.resize(kept);
  if (kept == 0 || (kept == 1 && gaps[0].stride == 1)) gaps.clear();
}

const void* View::block(std::int64_t begin, int n, void* buffer) const {
  if (gaps.empty()) return data + begin * size_of(kind);
  switch (size_of(kind)) {
    case 2: gather(*this, begin, n, static_cast<std::uint16_t*>(buffer)); break;
    case 4: gather(*this, begin, n, static_cast<std::uint32_t*>(buffer)); break;
    default: gather(*this, begin, n, static_cast<std::uint64_t*>(buffer)); break;
  }
  return buffer;
}

}  // namespace hooks
