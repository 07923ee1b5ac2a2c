// The queue of a DeviceRows: the partial rows that were written and wait to be merged, and the tensors that wait to be measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device.hpp"

namespace hooks {

// A kernel for one type of elements, in the context in which it was loaded.
struct Kernel {
  void *function = nullptr, *context = nullptr;
  unsigned shared = 0, threads = 0;
};

// The partial rows of one tensor: the offset of its row in the state, its number of elements, the first partial row, and the end.
struct Span {
  std::int64_t offset, size, first, end;
};

// How a tensor is divided into spans: the elements of a block, the programs of a launch, and the most blocks of a span.
struct Spread {
  std::int64_t block, programs, most_blocks;
};

// A tensor of a hook that is measured later: strong references to the tensor and to its DeviceWriter, and what the tensor was in the
// hook. `first` is its first partial row if it was measured in the hook, too.
struct LateTensor {
  PyObject *tensor, *writer;
  DeviceTensor found;
  std::int64_t version, offset, programs, first;
};

// A tensor that was measured in the hook and again later: the offset of its row, its partial rows, and the first of those in the hook
// and later. The last is -1 if the tensor was overwritten in between.
struct Trial {
  std::int64_t offset, programs, first, late;
};

// When a hook passes a tensor. A tensor that is not from a plain hook is measured at once.
enum class Moment : char { at_once, gradient, output };

// Whether the tensors of a row may be measured later: `unknown` rows are tried, and `tried` rows wait for the result.
enum class Standing : char { unknown, tried, late, at_once };

constexpr std::size_t kTogether = 8;  // tensors that a launch measures

// The tensors that wait to be measured, of one moment. See device_late.hpp.
struct Late {
  bool is_on[3] = {};                          // by moment
  Moment moment = Moment::at_once;             // of the tensors in `waiting`
  std::vector<LateTensor> waiting[kDeviceCodes];
  std::int64_t bytes = 0, programs = 0;        // of the tensors in `waiting`
  std::vector<LateTensor> tried;               // the oldest is the first
  std::int64_t tried_bytes = 0;
  std::vector<Trial> trials;
  std::vector<Standing> standings;             // by row
};

// How the units of a tensor are divided into parts; see cuda_units.py.
struct UnitDivision {
  std::int64_t programs, shortest, column_units, column_rows, run_block;
};

// What launches the units of tensors. The parts of every tensor are written into the same memory: a stream runs launches in order, so a
// launch writes parts only after the launch before has merged its own. So no other stream may use the memory, and no other thread while one
// thread is between its two launches.
struct UnitLaunches {
  Kernel columns[kDeviceCodes], runs[kDeviceCodes], merge;
  UnitDivision division = {};
  std::int64_t address = 0, capacity = 0;  // of the memory for parts; the capacity in float64
  void* stream = nullptr;                  // on which the memory may be used
  bool are_parts_taken = false;            // by a thread that is launching
};

// All partial rows between two merges are written on one stream, because a merge on that stream follows them.
struct Queue {
  Driver driver;
  Device device;
  std::int64_t address, capacity;  // of the partial rows
  Spread spread;
  Kernel kernels[kDeviceCodes], kernels_of_eight[kDeviceCodes], counters[kDeviceCodes];
  std::vector<Span> spans;
  std::int64_t used = 0;
  void* stream = nullptr;
  int launching = 0;  // the number of threads that are launching: their partial rows are reserved, but not among the spans
  Late late;
  UnitLaunches units;
};

// The queue of a DeviceRows.
Queue& queue_of(PyObject* rows);

// The number of blocks in a span of a tensor, and the number of programs that measure the tensor.
std::int64_t steps_of(const Spread& spread, std::int64_t size);
std::int64_t programs_of(const Spread& spread, std::int64_t size);

// Whether tensors on a stream can be queued: nothing waits on another stream.
bool takes(const Queue& queue, void* stream);

// Reserves partial rows. Returns the index of the first, or -1 if there is no room or others wait on another stream.
std::int64_t reserve(Queue& queue, std::int64_t programs, void* stream);

// Ends a reservation: frees the partial rows if nothing was launched.
void settle(Queue& queue, std::int64_t first, std::int64_t end, bool is_launched);

// Whether what is launched on a stream goes into a graph that is being captured, and does not run now.
bool is_capturing(const Queue& queue, void* stream);

// Whether this thread can launch kernels of a context on a stream. A kernel is launched in the current context, and a thread of autograd
// may have none.
bool is_ready(const Queue& queue, void* context, void* stream);

// Calls the driver, without the interpreter lock, with int64 parameters. The last kScratch must be 0: Triton appends pointers to scratch
// memory, which these kernels do not use, and the driver reads as many parameters as the kernel has. Returns whether it launched.
constexpr std::size_t kScratch = 4;
bool call_driver(const Queue& queue, const Kernel& kernel, std::int64_t programs, void* stream, std::int64_t* numbers, std::size_t many);

}  // namespace hooks
