// A loop that launches a kernel through the function of CUDA's driver, whose address the caller passes.

#include <chrono>
#include <cstdint>

extern "C" {

typedef int Launch(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared, void* stream, void** parameters, void** extra);

// Takes the place of the driver on a machine without a GPU.
int launch_nothing(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) { return 0; }

int some_context(void** context) {
  static int only;
  *context = &only;
  return 0;
}
int not_capturing(void*, int* status) {
  *status = 0;
  return 0;
}
int no_stream(int, std::int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

// The nanoseconds of some launches of a kernel whose parameters are integers; negative if the driver returns an error. The driver reads
// as many of `integers` as the kernel has parameters.
double nanoseconds(Launch* launch, void* function, unsigned threads, unsigned shared, void* stream, std::int64_t* integers, int calls) {
  void* parameters[32];
  for (int i = 0; i < 32; ++i) parameters[i] = integers + i;
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i)
    if (launch(function, 1, 1, 1, threads, 1, 1, shared, stream, parameters, nullptr) != 0) return -1;
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begun).count();
}
}
