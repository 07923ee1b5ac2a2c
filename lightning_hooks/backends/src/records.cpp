// CRC-32C (Castagnoli), as the records of an event file carry it: eight bytes at a time, by the instruction that x86 has for it, or
// from tables.
#include "records.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include "blocks.hpp"
#include "little.hpp"

namespace hooks {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables out{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    out[0][i] = crc;
  }
  for (std::uint32_t i = 0; i < 256; ++i) {
    for (std::size_t t = 1; t < 8; ++t) out[t][i] = (out[t - 1][i] >> 8) ^ out[0][out[t - 1][i] & 0xff];
  }
  return out;
}

constexpr Tables kTables8 = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc_by_instruction(const unsigned char* data, std::size_t size) {
  std::uint64_t crc = 0xffffffffu;
  for (; size >= 8; size -= 8, data += 8) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    crc = __builtin_ia32_crc32di(crc, word);
  }
  std::uint32_t rest = static_cast<std::uint32_t>(crc);
  for (; size > 0; --size, ++data) rest = __builtin_ia32_crc32qi(rest, *data);
  return ~rest;
}
#endif

std::uint32_t crc32c(const unsigned char* data, std::size_t size) {
#if defined(__x86_64__)
  if (std::strcmp(blocks().name, "baseline") != 0) return crc_by_instruction(data, size);  // AVX2 came after it
#endif
  std::uint32_t crc = 0xffffffffu;
  for (; size >= 8; size -= 8, data += 8) {
    crc ^= data[0] | data[1] << 8 | data[2] << 16 | static_cast<std::uint32_t>(data[3]) << 24;
    crc = kTables8[7][crc & 0xff] ^ kTables8[6][crc >> 8 & 0xff] ^ kTables8[5][crc >> 16 & 0xff] ^ kTables8[4][crc >> 24] ^
          kTables8[3][data[4]] ^ kTables8[2][data[5]] ^ kTables8[1][data[6]] ^ kTables8[0][data[7]];
  }
  for (; size > 0; --size, ++data) crc = (crc >> 8) ^ kTables8[0][(crc ^ *data) & 0xff];
  return ~crc;
}
// As a record holds it: turned around and offset, since records may hold records.
std::uint32_t masked(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

// Bytes of Python to be written into; null with a Python error set.
PyObject* room_for(std::size_t size, unsigned char*& into) {
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (made) into = reinterpret_cast<unsigned char*>(PyBytes_AsString(made));
  return made;
}

// Field numbers and wire types of an event.
constexpr unsigned char kWallTime = 0x09, kStep = 0x10, kSummary = 0x2a;

}  // namespace

PyObject* py_record(PyObject*, PyObject* data) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(data, &bytes, &size) != 0) return nullptr;
  const auto length = static_cast<std::size_t>(size);
  unsigned char* into = nullptr;
  PyObject* const made = room_for(length + 16, into);
  if (!made) return nullptr;
  put_little<8>(into, length);
  put_little<4>(into + 8, masked(crc32c(into, 8)));
  std::memcpy(into + 12, bytes, length);
  put_little<4>(into + 12 + length, masked(crc32c(into + 12, length)));
  return made;
}

PyObject* py_event(PyObject*, PyObject* const* args, Py_ssize_t given) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (given != 3) return PyErr_Format(PyExc_TypeError, "expected a time, a step and a summary");
  const double time = PyFloat_AsDouble(args[0]);
  const std::uint64_t step = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[1]);
  if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[2], &bytes, &size) != 0) return nullptr;
  const auto length = static_cast<std::size_t>(size);
  unsigned char* into = nullptr;
  PyObject* const made = room_for(11 + varint_size(step) + varint_size(length) + length, into);
  if (!made) return nullptr;
  *into++ = kWallTime;
  into = put_double(into, time);
  *into++ = kStep;
  into = put_varint(into, step);
  *into++ = kSummary;
  into = put_varint(into, length);
  std::memcpy(into, bytes, length);
  return made;
}

}  // namespace hooks
