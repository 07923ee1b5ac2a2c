#include "filling.hpp"

#include <cstdint>

#include "buffer.hpp"
#include "little.hpp"

namespace hooks {

PyObject* py_fill_floats(PyObject*, PyObject* const* args, Py_ssize_t given) {
  if (given != 3) {
    PyErr_SetString(PyExc_TypeError, "expected a buffer, its slots, and numbers");
    return nullptr;
  }
  const Buffer buffer(args[0], PyBUF_WRITABLE);
  if (!buffer.held()) return nullptr;
  const Buffer slots(args[1], PyBUF_SIMPLE);
  if (!slots.held()) return nullptr;
  const Buffer numbers(args[2], PyBUF_SIMPLE);
  if (!numbers.held()) return nullptr;
  const auto bytes = static_cast<std::int64_t>(buffer.size(1)), known = static_cast<std::int64_t>(numbers.size(8));
  const std::size_t many = slots.size(3 * sizeof(std::int64_t));
  const auto* slot = slots.data<std::int64_t>();
  for (std::size_t i = 0; i < many; ++i, slot += 3) {
    if (slot[0] < 0 || slot[1] < 0 || slot[2] < 0 || slot[2] > known - slot[1] || slot[2] > (bytes - slot[0]) / 4) {
      PyErr_SetString(PyExc_ValueError, "a slot outside of the buffer, or a number outside of those given");
      return nullptr;
    }
    unsigned char* const into = buffer.data<unsigned char>() + slot[0];
    const double* const from = numbers.data<double>() + slot[1];
    for (std::int64_t k = 0; k < slot[2]; ++k) put_float(into + 4 * k, from[k]);
  }
  Py_RETURN_NONE;
}

}  // namespace hooks
