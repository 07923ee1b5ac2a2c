// Copies tensors into existing memory with several threads.
#include "writing.hpp"

#include <cstring>
#include <vector>

#include "pieces.hpp"

namespace hooks {
namespace {

constexpr std::int64_t kMostBytes = 1 << 16;  // the largest piece that one thread copies at a time

struct Copy {
  const char* from;
  char* to;
  std::int64_t bytes;
};

struct Job {
  const Copy* copies = nullptr;
  Pieces pieces;

  static void body(void* job, unsigned thread) {
    Job& mine = *static_cast<Job*>(job);
    mine.pieces.take(thread, [&mine](std::size_t i) {
      const Piece& piece = mine.pieces[i];
      const Copy& whole = mine.copies[piece.of];
      std::memcpy(whole.to + piece.begin, whole.from + piece.begin, static_cast<std::size_t>(piece.end - piece.begin));
    });
  }
};

void copy(const std::vector<Copy>& copies, std::int64_t elements, unsigned threads) {
  const auto alone = [&copies] {
    for (const Copy& each : copies) std::memcpy(each.to, each.from, static_cast<std::size_t>(each.bytes));
  };
  const auto together = [&copies, threads](bool in_team) {
    thread_local Job job;
    std::int64_t bytes = 0;
    for (const Copy& each : copies) bytes += each.bytes;
    job.copies = copies.data();
    job.pieces.plan(copies.size(), [&copies](std::size_t i) { return copies[i].bytes; }, kMostBytes, threads);
    run_together(Job::body, &job, bytes, threads, in_team);
  };
  share(elements, threads, alone, together);
}

}  // namespace

// Arguments: a list of tensors to copy into, a list of as many tensors to copy from. Returns the indices of the pairs that were
// skipped: a tensor that this kernel does not measure, or two tensors of different types or layouts.
PyObject* py_copy_many(PyObject*, PyObject* const* args, Py_ssize_t given) {
  // The two tuples keep the tensors alive while the interpreter lock is released.
  PyObject* const into = given == 2 ? PySequence_Tuple(args[0]) : nullptr;
  PyObject* const from = into ? PySequence_Tuple(args[1]) : nullptr;
  const Py_ssize_t many = from ? PyTuple_Size(from) : -1;
  PyObject* skipped = from && PyTuple_Size(into) == many ? PyList_New(0) : nullptr;
  if (!skipped && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "expected two lists of one length");
  std::vector<Copy> copies;
  std::int64_t elements = 0;
  for (Py_ssize_t i = 0; i < many && skipped; ++i) {
    View view;
    const int found = view_of_difference(PyTuple_GetItem(from, i), PyTuple_GetItem(into, i), view);
    PyObject* const position = found == 0 ? PyLong_FromSsize_t(i) : nullptr;
    if (found > 0) {
      copies.push_back({view.data, const_cast<char*>(view.minus), view.numel * size_of(view.stored)});
      elements += view.numel;
    } else if (!position || PyList_Append(skipped, position) != 0) {
      Py_DECREF(skipped);
      skipped = nullptr;
    }
    Py_XDECREF(position);
  }
  if (skipped && !unlocked(elements, [&](unsigned threads) { copy(copies, elements, threads); })) {
    Py_DECREF(skipped);
    skipped = nullptr;
  }
  Py_XDECREF(into);
  Py_XDECREF(from);
  return skipped;
}

}  // namespace hooks
