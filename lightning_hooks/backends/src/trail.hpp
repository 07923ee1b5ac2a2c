// A trail: a ring of the last measurements in the order in which they were made, so that the first number that is not finite can be
// traced to the call that gave it.
#pragma once

#include "hooks.hpp"
#include "row.hpp"

namespace hooks {

// Adds what a writer has measured for a row of its table. `trail` is an object of the type below.
void note(PyObject* trail, int row, const RowMoments& measured);

// Adds a measurement whose numbers stay on a device.
void note_order(PyObject* trail, int row);

bool is_trail(PyObject* object);
// Create the type, and add it to the module. Both return false with a Python error set.
bool make_trail_type();
bool add_trail_type(PyObject* module);

}  // namespace hooks
