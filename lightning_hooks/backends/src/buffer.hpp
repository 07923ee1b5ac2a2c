// A contiguous buffer of a Python object, released at the end of the scope.
#pragma once

#include "tensor.hpp"

namespace hooks {

class Buffer {
 public:
  // If the object has no such buffer, `held` is false and a Python error is set. Call no other method then.
  Buffer(PyObject* owner, int flags) : held_(PyObject_GetBuffer(owner, &buffer_, flags | PyBUF_C_CONTIGUOUS) == 0) {}
  ~Buffer() {
    if (held_) PyBuffer_Release(&buffer_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  bool held() const { return held_; }
  template <class T>
  T* data() const {
    return static_cast<T*>(buffer_.buf);
  }
  // Returns how many elements of `bytes` bytes each the buffer holds.
  std::size_t size(std::size_t bytes) const { return static_cast<std::size_t>(buffer_.len) / bytes; }

 private:
  Py_buffer buffer_;
  bool held_;
};

}  // namespace hooks
