#include "events.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "little.hpp"

namespace hooks {
namespace {

// Keys (field number and wire type) of the protocol buffers: the values of a summary; the tag and the histogram of a value; the five
// numbers, the edges and the counts of a histogram.
constexpr char kValue = 0x0a, kTag = 0x0a, kHistogram = 0x2a, kNumbers[] = {0x09, 0x11, 0x19, 0x21, 0x29}, kEdges = 0x32,
               kCounts = 0x3a;

void put_varint(std::string& out, std::size_t number) {
  unsigned char bytes[10];
  out.append(reinterpret_cast<char*>(bytes), static_cast<std::size_t>(hooks::put_varint(bytes, number) - bytes));
}
void put_bytes(std::string& out, const unsigned char* bytes, std::size_t size) {
  out.append(reinterpret_cast<const char*>(bytes), size);
}

constexpr std::size_t kSkipped = 8;
// Tests several buckets at once, because most buckets are empty.
bool all_empty(const double* counts) {
  std::uint64_t bits[kSkipped], any = 0;
  std::memcpy(bits, counts, sizeof bits);
  for (const std::uint64_t each : bits) any |= each;
  return any == 0;
}

struct Drawing {
  std::vector<unsigned char> edges, heights;
  std::size_t size = 0;  // bytes used in `edges`, and as many in `heights`
  unsigned char numbers[5][8];

  explicit Drawing(std::size_t buckets) : edges(8 * buckets + 8), heights(edges) {}

  // Writes the occupied buckets. Before an occupied bucket, one empty bucket provides the left edge and represents the whole gap.
  void draw(const double* counts, const double* limits, std::size_t buckets) {
    size = 0;
    double low = 0, high = 0, number = 0, sum = 0, squares = 0;
    for (std::size_t i = 0; i < buckets; ++i) {
      // Skip all but the last of kSkipped empty buckets: the last one may precede an occupied bucket.
      while (i + kSkipped < buckets && all_empty(counts + i)) i += kSkipped - 1;
      const bool occupied = counts[i] != 0;
      if (!occupied && (i + 1 == buckets || counts[i + 1] == 0)) continue;
      put(limits[i], counts[i]);
      if (!occupied) continue;
      const double left = limits[i ? i - 1 : 0], middle = (left + limits[i]) / 2;
      if (number == 0) low = left;
      high = limits[i];
      number += counts[i];
      sum += counts[i] * middle;
      squares += counts[i] * (middle * middle);
    }
    // If all buckets are empty, because no element was finite, write one bucket of height 0.
    if (size == 0) put(0, 0);
    const double summary[5] = {low, high, number, sum, squares};
    for (int i = 0; i < 5; ++i) put_double(numbers[i], summary[i]);
  }

 private:
  void put(double edge, double height) {
    put_double(edges.data() + size, edge);
    put_double(heights.data() + size, height);
    size += 8;
  }
};

void put_value(std::string& out, const char* tag, std::size_t length, const Drawing& drawing) {
  const std::size_t packed = drawing.size;
  const std::size_t drawn = 5 * 9 + 2 * (1 + varint_size(packed) + packed);
  out.push_back(kValue);
  put_varint(out, 1 + varint_size(length) + length + 1 + varint_size(drawn) + drawn);
  out.push_back(kTag);
  put_varint(out, length);
  out.append(tag, length);
  out.push_back(kHistogram);
  put_varint(out, drawn);
  for (int i = 0; i < 5; ++i) {
    out.push_back(kNumbers[i]);
    put_bytes(out, drawing.numbers[i], sizeof drawing.numbers[i]);
  }
  for (const auto& [key, bytes] : {std::pair{kEdges, drawing.edges.data()}, {kCounts, drawing.heights.data()}}) {
    out.push_back(key);
    put_varint(out, packed);
    put_bytes(out, bytes, packed);
  }
}

}  // namespace

PyObject* py_draw(PyObject*, PyObject* const* args, Py_ssize_t given) {
  if (given != 3) {
    PyErr_SetString(PyExc_TypeError, "expected tags, counts, and edges");
    return nullptr;
  }
  const Py_ssize_t many = PySequence_Size(args[0]);
  if (many < 0) return nullptr;
  const Buffer counts(args[1], PyBUF_SIMPLE);
  if (!counts.held()) return nullptr;
  const Buffer limits(args[2], PyBUF_SIMPLE);
  if (!limits.held()) return nullptr;
  const std::size_t buckets = limits.size(sizeof(double));
  if (counts.size(sizeof(double)) != static_cast<std::size_t>(many) * buckets) {
    PyErr_SetString(PyExc_ValueError, "expected a count for each bucket of each tag");
    return nullptr;
  }
  std::string out;
  Drawing drawing(buckets);
  for (Py_ssize_t i = 0; i < many; ++i) {
    PyObject* const tag = PySequence_GetItem(args[0], i);
    Py_ssize_t length = 0;
    const char* const text = tag ? PyUnicode_AsUTF8AndSize(tag, &length) : nullptr;
    if (text) {
      drawing.draw(counts.data<double>() + static_cast<std::size_t>(i) * buckets, limits.data<double>(), buckets);
      put_value(out, text, static_cast<std::size_t>(length), drawing);
    }
    Py_XDECREF(tag);
    if (!text) return nullptr;
  }
  return PyBytes_FromStringAndSize(out.data(), static_cast<Py_ssize_t>(out.size()));
}

PyObject* py_fill_floats(PyObject*, PyObject* const* args, Py_ssize_t given) {
  if (given != 3) {
    PyErr_SetString(PyExc_TypeError, "expected a buffer, its fields, and numbers");
    return nullptr;
  }
  const Buffer buffer(args[0], PyBUF_WRITABLE);
  if (!buffer.held()) return nullptr;
  const Buffer fields(args[1], PyBUF_SIMPLE);
  if (!fields.held()) return nullptr;
  const Buffer numbers(args[2], PyBUF_SIMPLE);
  if (!numbers.held()) return nullptr;
  const auto bytes = static_cast<std::int64_t>(buffer.size(1)), known = static_cast<std::int64_t>(numbers.size(8));
  const std::size_t many = fields.size(3 * sizeof(std::int64_t));
  const auto* field = fields.data<std::int64_t>();
  for (std::size_t i = 0; i < many; ++i, field += 3) {
    if (field[0] < 0 || field[1] < 0 || field[2] < 0 || field[2] > known - field[1] || field[2] > (bytes - field[0]) / 4) {
      PyErr_SetString(PyExc_ValueError, "a field outside of the buffer, or a number outside of those given");
      return nullptr;
    }
    unsigned char* const into = buffer.data<unsigned char>() + field[0];
    const double* const from = numbers.data<double>() + field[1];
    for (std::int64_t k = 0; k < field[2]; ++k) put_float(into + 4 * k, from[k]);
  }
  Py_RETURN_NONE;
}

}  // namespace hooks
