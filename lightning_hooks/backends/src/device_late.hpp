// Tensors of hooks that are measured late: up to eight of them in one launch. Until then the queue holds a reference, so that their memory
// is not used again; and what was overwritten in place is told by the version and the address of a tensor, or was found out beforehand:
// the first tensors of a row are measured in the hook and again later, and only rows with equal numbers are measured late from then on.
#pragma once

#include "device_queue.hpp"

namespace hooks {

// Takes a tensor that was found on the device, and can be launched on a stream, if it may be measured late. Returns 1 if it did, 0 if the
// tensor must be measured at once, and -1 with a Python error set.
int take_late(Queue& queue, PyObject* writer, PyObject* tensor, Moment moment, std::int64_t offset, const DeviceTensor& found,
              void* stream);

// Called when a tensor was measured at once, with its partial rows: tries whether the tensors of its row may be measured late.
void try_late(Queue& queue, PyObject* writer, PyObject* tensor, Moment moment, std::int64_t offset, const DeviceTensor& found,
              std::int64_t first, std::int64_t programs);

// Whether tensors that wait must be measured before another one is measured at once: those of the same row, so that its partial rows keep
// the order of hooks; and gradients when the next forward runs, and the reverse.
bool precedes(const Queue& queue, Moment moment, std::int64_t offset);

// Measures all tensors that wait, unless a graph is being captured on their stream, into which a launch would go. A tensor that cannot be
// launched is measured from Python. Returns false with a Python error set.
bool flush_late(Queue& queue);

// Releases all tensors that wait, and discards trials.
void forget_late(Queue& queue);

int traverse_late(Queue& queue, visitproc visit, void* arg);

// Methods of DeviceRows.
PyObject* py_set_late(PyObject* self, PyObject* args);
PyObject* py_late(PyObject* self, PyObject*);
PyObject* py_flush(PyObject* self, PyObject*);
PyObject* py_trials(PyObject* self, PyObject*);
PyObject* py_decide(PyObject* self, PyObject* args);
PyObject* py_forget(PyObject* self, PyObject*);

// Creates the names of attributes. Returns false with a Python error set.
bool make_late_names();

}  // namespace hooks
