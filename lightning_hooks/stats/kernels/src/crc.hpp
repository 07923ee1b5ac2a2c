// The checksum of the records of an event file.
#pragma once

#include "tensor.hpp"

namespace hooks {

// Argument: bytes. Gives their CRC-32C.
PyObject* py_crc32c(PyObject*, PyObject* data);

}  // namespace hooks
