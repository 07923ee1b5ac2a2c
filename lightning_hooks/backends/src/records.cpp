// CRC-32C (Castagnoli), the checksum in event files. It is computed eight bytes at a time, with the instruction of x86 or tables.
#include "events.hpp"

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
#if defined(__clang__)
__attribute__((target("sse4.2,crc32")))
#else
__attribute__((target("sse4.2")))
#endif
std::uint32_t crc_by_instruction(const unsigned char* data, std::size_t size) {
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
  // Every set but the baseline needs AVX2, and a processor with AVX2 has SSE 4.2, to which the CRC instruction belongs.
  if (std::strcmp(blocks().name, "baseline") != 0) return crc_by_instruction(data, size);
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
// The form in which a record stores a CRC, rotated and offset. The CRC of data that contain a plain CRC would be unreliable, and a
// record may contain other records.
std::uint32_t masked(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

}  // namespace

PyObject* py_record(PyObject*, PyObject* data) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(data, &bytes, &size) != 0) return nullptr;
  const auto length = static_cast<std::size_t>(size);
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, size + 16);
  if (!made) return nullptr;
  auto* const into = reinterpret_cast<unsigned char*>(PyBytes_AsString(made));
  put_little<8>(into, length);
  put_little<4>(into + 8, masked(crc32c(into, 8)));
  std::memcpy(into + 12, bytes, length);
  put_little<4>(into + 12 + length, masked(crc32c(into + 12, length)));
  return made;
}

}  // namespace hooks
