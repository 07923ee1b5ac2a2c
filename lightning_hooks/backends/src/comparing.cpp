// Compares pairs of tensors with several threads: the sums of products and of squares, from which their cosine is computed.
#include "writing.hpp"

#include <vector>

#include "buffer.hpp"
#include "pieces.hpp"
#include "ranges.hpp"

namespace hooks {
namespace {

// Compares views with a `minus`, in pieces whose sums are added up in order, so that rounding does not depend on threads.
class Job {
 public:
  void plan(const std::vector<View>& of, unsigned threads) {
    kernels = &blocks();
    views = of.data();
    pieces.plan(of.size(), [&of](std::size_t i) { return of[i].numel; }, kBlock, threads);
    bytes = 0;
    for (const View& each : of) bytes += 2 * each.numel * size_of(each.stored);
    parts.assign(pieces.size(), Products());
  }
  void add_into(std::vector<Products>& out) const {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      Products& whole = out[pieces[i].of];
      whole.both += parts[i].both;
      whole.left += parts[i].left;
      whole.right += parts[i].right;
    }
  }
  std::int64_t size() const { return bytes; }
  static void body(void* job, unsigned thread) {
    Job& mine = *static_cast<Job*>(job);
    mine.pieces.take(thread, [&mine](std::size_t i) {
      const Piece& piece = mine.pieces[i];
      const View& view = mine.views[piece.of];
      const std::int64_t offset = piece.begin * size_of(view.stored);
      const int n = static_cast<int>(piece.end - piece.begin);
      mine.kernels->products(view.stored, view.data + offset, view.minus + offset, n, mine.parts[i]);
    });
  }

 private:
  const Blocks* kernels = nullptr;
  const View* views = nullptr;
  Pieces pieces;
  std::vector<Products> parts;
  std::int64_t bytes = 0;
};

void compare(const std::vector<View>& views, std::int64_t elements, unsigned threads, std::vector<Products>& out) {
  thread_local Job job;
  job.plan(views, threads);
  share(
      elements, threads, [] { Job::body(&job, 0); },
      [threads](bool in_team) { run_together(Job::body, &job, job.size(), threads, in_team); });
  job.add_into(out);
}

}  // namespace

// Arguments: the state, a float64 tensor; an int64 buffer with the index in the state at which the three sums of each pair begin; two
// lists of as many tensors. Writes the sums of the products, of the squares of the second and of those of the first. Returns the
// indices of the pairs that were skipped: a tensor that this kernel does not measure, or two of different types or layouts.
PyObject* py_compare_many(PyObject*, PyObject* const* args, Py_ssize_t given) {
  if (given != 4) {
    PyErr_SetString(PyExc_TypeError, "expected the state, offsets and two lists of tensors");
    return nullptr;
  }
  const Buffer firsts(args[1], PyBUF_SIMPLE);
  if (!firsts.held()) return nullptr;
  // The two tuples keep the tensors alive while the interpreter lock is released.
  PyObject* const left = PySequence_Tuple(args[2]);
  PyObject* const right = left ? PySequence_Tuple(args[3]) : nullptr;
  const Py_ssize_t many = right ? PyTuple_Size(left) : -1;
  const bool fit = right && PyTuple_Size(right) == many && firsts.size(8) == static_cast<std::size_t>(many);
  PyObject* skipped = fit ? PyList_New(0) : nullptr;
  if (!skipped && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "expected the state and lists of one length");
  View state;
  if (skipped && view_of(args[0], state, false) <= 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "the state must be a tensor in host memory");
    Py_CLEAR(skipped);
  }
  std::vector<View> views;
  std::vector<double*> destinations;
  std::int64_t elements = 0;
  for (Py_ssize_t i = 0; i < many && skipped; ++i) {
    View view;
    const int found = view_of_difference(PyTuple_GetItem(left, i), PyTuple_GetItem(right, i), view);
    double* const into = found > 0 ? numbers_of(state, firsts.data<std::int64_t>()[i], 3) : nullptr;
    PyObject* const position = found == 0 ? PyLong_FromSsize_t(i) : nullptr;
    if (into) {
      elements += view.numel;
      views.push_back(std::move(view));
      destinations.push_back(into);
    } else if (!position || PyList_Append(skipped, position) != 0) {
      Py_CLEAR(skipped);
    }
    Py_XDECREF(position);
  }
  std::vector<Products> sums(views.size());
  if (skipped && !unlocked(elements, [&](unsigned threads) { compare(views, elements, threads, sums); })) Py_CLEAR(skipped);
  for (std::size_t i = 0; i < sums.size() && skipped; ++i) {
    destinations[i][0] = sums[i].both;
    destinations[i][1] = sums[i].right;
    destinations[i][2] = sums[i].left;
  }
  Py_XDECREF(left);
  Py_XDECREF(right);
  return skipped;
}

}  // namespace hooks
