// The partial rows of tensors on a device that were measured by hooks and wait to be merged into the rows of a table.
#pragma once

#include "device_queue.hpp"

namespace hooks {

PyTypeObject* device_rows_type();
// Creates the type. Returns false with a Python error set.
bool make_device_rows_type();

}  // namespace hooks
