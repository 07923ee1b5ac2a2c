// CRC-32C (Castagnoli), as the records of an event file carry it, eight bytes at a time from tables.
#include "crc.hpp"

#include <array>
#include <cstdint>
#include <cstring>

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

std::uint32_t crc32c(const unsigned char* data, std::size_t size) {
  std::uint32_t crc = 0xffffffffu;
  for (; size >= 8; size -= 8, data += 8) {
    crc ^= data[0] | data[1] << 8 | data[2] << 16 | static_cast<std::uint32_t>(data[3]) << 24;
    crc = kTables8[7][crc & 0xff] ^ kTables8[6][crc >> 8 & 0xff] ^ kTables8[5][crc >> 16 & 0xff] ^ kTables8[4][crc >> 24] ^
          kTables8[3][data[4]] ^ kTables8[2][data[5]] ^ kTables8[1][data[6]] ^ kTables8[0][data[7]];
  }
  for (; size > 0; --size, ++data) crc = (crc >> 8) ^ kTables8[0][(crc ^ *data) & 0xff];
  return ~crc;
}

}  // namespace

PyObject* py_crc32c(PyObject*, PyObject* data) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(data, &bytes, &size) != 0) return nullptr;
  return PyLong_FromUnsignedLong(crc32c(reinterpret_cast<const unsigned char*>(bytes), static_cast<std::size_t>(size)));
}

}  // namespace hooks
