// Little-endian numbers and varints, on processors of any byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hooks {

// Writes the lowest `bytes` bytes of a number. This function and the next ones return the address after the written bytes.
template <int bytes>
inline unsigned char* put_little(unsigned char* into, std::uint64_t number) {
  for (int i = 0; i < bytes; ++i) into[i] = static_cast<unsigned char>(number >> (8 * i));
  return into + bytes;
}
inline unsigned char* put_float(unsigned char* into, double number) {
  const float narrow = static_cast<float>(number);
  std::uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  return put_little<4>(into, bits);
}
inline unsigned char* put_double(unsigned char* into, double number) {
  std::uint64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return put_little<8>(into, bits);
}
// Writes a varint of protocol buffers: groups of seven bits, the lowest first.
inline unsigned char* put_varint(unsigned char* into, std::uint64_t number) {
  for (; number > 127; number >>= 7) *into++ = static_cast<unsigned char>((number & 127) | 128);
  *into++ = static_cast<unsigned char>(number);
  return into;
}
inline std::size_t varint_size(std::uint64_t number) {
  std::size_t size = 1;
  for (; number > 127; number >>= 7) ++size;
  return size;
}

}  // namespace hooks
