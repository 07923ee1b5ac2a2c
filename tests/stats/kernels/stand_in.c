/* A driver without a device: it runs the kernels of lightning_hooks at once, in host memory, in double precision.

The names of the functions are those of CUDA's driver. The variables say what the driver answers, so that tests can change it. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LIST = 8, PAIRED = 16, MERGE = 32, COMPARE = 64, UNITS = 128, COUNT = 256, CLEAR = 512, EIGHT = 1024, BLOCK = 4096 };
enum { COLUMN_UNITS = 128, COLUMN_ROWS = 32, RUN_BLOCK = 1024 };

int status = 0;        /* of launches; if it is not 0, nothing is launched */
int failing = -1;      /* the kernel whose launches fail, of any type; -1 for none */
int capturing = 0;     /* what cuStreamIsCapturing tells */
void *context = &status; /* the current context */
void *stream = 0;      /* the stream on which torch works */
long long launches = 0;
int history[64];       /* the kernels of the last launches, the one of launch i at i % 64 */
void *last_stream = 0;

static double element(const char *data, int64_t i, int code) {
  uint16_t half;
  uint32_t bits;
  float single;
  double number;
  if (code == 3) return memcpy(&number, data + 8 * i, 8), number;
  if (code == 0) return memcpy(&single, data + 4 * i, 4), single;
  memcpy(&half, data + 2 * i, 2);
  if (code == 2) {
    bits = (uint32_t)half << 16;
    memcpy(&single, &bits, 4);
    return single;
  }
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const double sign = half >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static void span(const char *data, const char *before, int code, int64_t begin, int64_t end, double *row) {
  const double least = code == 3 ? 2.2250738585072014e-308 : code == 1 && !before ? 6.103515625e-05 : 1.1754943508222875e-38;
  double total = 0, sizes = 0, low = INFINITY, high = -INFINITY, squares = 0;
  int64_t zeros = 0, nonfinite = 0, nans = 0, small = 0;
  for (int pass = 0; pass < 2; ++pass) {
    const double mean = total / (double)(end - begin);
    for (int64_t i = begin; i < end; ++i) {
      double x = element(data, i, code);
      if (before) x = code == 3 ? x - element(before, i, code) : (float)x - (float)element(before, i, code);
      if (pass) {
        squares += (x - mean) * (x - mean);
        continue;
      }
      total += x;
      sizes += fabs(x);
      zeros += x == 0;
      nans += isnan(x) != 0;
      nonfinite += !isfinite(x);
      small += x != 0 && fabs(x) < least;
      if (x < low) low = x;
      if (x > high) high = x;
    }
    if (pass == 0) row[1] = mean;
  }
  row[0] = (double)(end - begin);
  row[1] = total / row[0];
  row[2] = squares;
  row[3] = sizes;
  row[4] = nans ? NAN : low;
  row[5] = nans ? NAN : high;
  row[6] = (double)zeros;
  row[7] = (double)nonfinite;
  row[8] = (double)small;
}

static void measure_one(int code, unsigned programs, const int64_t *p) {
  for (int64_t i = 0; i < programs; ++i) {
    const int64_t begin = i * p[2] * BLOCK, end = begin + p[2] * BLOCK;
    span((const char *)p[0], 0, code, begin, end < p[1] ? end : p[1], (double *)p[3] + 9 * i);
  }
}

/* As `_steps` of cuda.py. */
static int64_t steps_of(int64_t size) {
  const int64_t blocks = (size + BLOCK - 1) / BLOCK, few = (blocks + 511) / 512, many = (blocks + 1023) / 1024;
  return few > 8 ? (many > 16 ? 16 : many) : few < 1 ? 1 : few;
}

static void measure_eight(int code, unsigned programs, const int64_t *p) {
  for (int64_t i = 0; i < programs; ++i) {
    int64_t which = 0, first = 0;
    while (which < 7 && i >= p[16 + which]) first = p[16 + which++];
    const int64_t size = p[8 + which], length = steps_of(size) * BLOCK, begin = (i - first) * length, end = begin + length;
    span((const char *)p[which], 0, code, begin, end < size ? end : size, (double *)p[23] + 9 * i);
  }
}

static void measure_list(int code, int paired, unsigned programs, const int64_t *p) {
  const int64_t *table = (const int64_t *)p[0], many = p[1];
  for (int64_t i = 0; i < programs; ++i) {
    const int64_t tensor = table[4 * many + i], size = table[many + tensor];
    const int64_t begin = (i - table[2 * many + tensor]) * p[2] * BLOCK, end = begin + p[2] * BLOCK;
    span((const char *)table[tensor], paired ? (const char *)table[3 * many + tensor] : 0, code, begin, end < size ? end : size,
         (double *)p[3] + 9 * i);
  }
}

static void merge_into(double *row, const double *part) {
  if (part[0] == 0) return;
  const double count = row[0] + part[0], mean = row[0] / count * row[1] + part[0] / count * part[1];
  const double left = row[1] - mean, right = part[1] - mean;
  row[2] += part[2] + part[0] * right * right + (row[0] == 0 ? 0 : row[0] * left * left);
  row[0] = count;
  row[1] = mean;
  row[4] = isnan(row[4]) || isnan(part[4]) ? NAN : fmin(row[4], part[4]);
  row[5] = isnan(row[5]) || isnan(part[5]) ? NAN : fmax(row[5], part[5]);
  row[3] += part[3];
  for (int i = 6; i < 9; ++i) row[i] += part[i];
}

static void merge_rows(unsigned programs, const int64_t *p) {
  const int64_t *table = (const int64_t *)p[0], targets = p[1], segments = p[2];
  const int64_t *starts = table + 3 * targets + 1;
  for (int64_t i = 0; i < programs; ++i) {
    double *row = (double *)p[4] + table[i];
    const double none[] = {0, 0, 0, 0, INFINITY, -INFINITY, 0, 0, 0};
    if (!p[5]) memcpy(row, none, sizeof none);
    for (int64_t s = table[2 * targets + i]; s < table[2 * targets + i + 1]; ++s) {
      for (int64_t at = starts[s]; at < starts[segments + s]; ++at) merge_into(row, (const double *)p[3] + 9 * at);
    }
  }
}

static void compare_list(int code, unsigned programs, const int64_t *p) {
  const int64_t *table = (const int64_t *)p[0], many = p[1];
  for (int64_t i = 0; i < programs; ++i) {
    const int64_t tensor = table[4 * many + i], size = table[many + tensor];
    const int64_t begin = (i - table[2 * many + tensor]) * p[2] * BLOCK, end = begin + p[2] * BLOCK;
    double *sums = (double *)p[3] + 3 * i;
    memset(sums, 0, 3 * sizeof *sums);
    for (int64_t at = begin; at < (end < size ? end : size); ++at) {
      const double x = element((const char *)table[tensor], at, code), y = element((const char *)table[3 * many + tensor], at, code);
      sums[0] += x * y;
      sums[1] += y * y;
      sums[2] += x * x;
    }
  }
}

static void merge_products(unsigned programs, const int64_t *p) {
  const int64_t *table = (const int64_t *)p[0], targets = p[1], segments = p[2];
  const int64_t *starts = table + 3 * targets + 1;
  for (int64_t i = 0; i < programs; ++i) {
    double *sums = (double *)p[4] + table[i];
    memset(sums, 0, 3 * sizeof *sums);
    for (int64_t s = table[2 * targets + i]; s < table[2 * targets + i + 1]; ++s) {
      for (int64_t at = 3 * starts[s]; at < 3 * starts[segments + s]; ++at) sums[at % 3] += ((const double *)p[3])[at];
    }
  }
}

/* The bucket of a number that is finite; see stats/histogram.py. */
static int bucket(double x) {
  int exponent;
  frexp(x, &exponent);
  if (x == 0 || exponent < -125) return 254;
  if (exponent > 128) exponent = 128;
  return 254 + (x < 0 ? -1 : 1) * (exponent + 126);
}

static void count_span(const char *data, const char *before, int code, int64_t begin, int64_t end, double *counts) {
  for (int64_t i = begin; i < end; ++i) {
    const double x = element(data, i, code), less = before ? element(before, i, code) : 0;
    const double apart = !before ? x : code == 3 ? x - less : (float)x - (float)less;
    if (isfinite(apart)) ++counts[bucket(apart)];
  }
}

static void count_one(int code, unsigned programs, const int64_t *p) {
  for (int64_t i = 0; i < programs; ++i) {
    const int64_t begin = i * p[2] * BLOCK, end = begin + p[2] * BLOCK;
    count_span((const char *)p[0], 0, code, begin, end < p[1] ? end : p[1], (double *)p[3]);
  }
}

static void count_list(int code, int paired, unsigned programs, const int64_t *p) {
  const int64_t *table = (const int64_t *)p[0], many = p[1];
  for (int64_t i = 0; i < programs; ++i) {
    const int64_t tensor = table[5 * many + i], size = table[many + tensor];
    const int64_t begin = (i - table[2 * many + tensor]) * p[2] * BLOCK, end = begin + p[2] * BLOCK;
    count_span((const char *)table[tensor], paired ? (const char *)table[3 * many + tensor] : 0, code, begin,
               end < size ? end : size, (double *)p[3] + table[4 * many + tensor]);
  }
}

static void clear_counts(unsigned programs, const int64_t *p) {
  for (int64_t i = 0; i < programs; ++i) memset((double *)p[1] + ((const int64_t *)p[0])[i], 0, 509 * sizeof(double));
}

static void add_unit(double *unit, double x) {
  unit[0] += x;
  unit[1] += x * x;
  unit[2] = isnan(unit[2]) || isnan(x) ? NAN : fmax(unit[2], fabs(x));
  unit[3] += x == 0;
}

static void measure_columns(int code, unsigned programs, const int64_t *p) {
  const int64_t outer = p[1], units = p[2], blocks = (units + COLUMN_UNITS - 1) / COLUMN_UNITS;
  for (int64_t part = 0; part < programs / blocks; ++part) {
    const int64_t begin = part * p[3] * COLUMN_ROWS, end = begin + p[3] * COLUMN_ROWS;
    double *out = (double *)p[4] + 4 * part * units;
    memset(out, 0, 32 * units);
    for (int64_t row = begin; row < (end < outer ? end : outer); ++row) {
      for (int64_t unit = 0; unit < units; ++unit) add_unit(out + 4 * unit, element((const char *)p[0], row * units + unit, code));
    }
  }
}

static void measure_runs(int code, unsigned programs, const int64_t *p) {
  const int64_t size = p[1] * p[3], units = p[2], inner = p[3];
  for (int64_t i = 0; i < programs; ++i) {
    const int64_t begin = i / units * p[4] * RUN_BLOCK, end = begin + p[4] * RUN_BLOCK;
    double *out = (double *)p[5] + 4 * i;
    memset(out, 0, 32);
    for (int64_t at = begin; at < (end < size ? end : size); ++at) {
      add_unit(out, element((const char *)p[0], at / inner * units * inner + i % units * inner + at % inner, code));
    }
  }
}

static void merge_parts(const int64_t *p) {
  const int64_t many = p[1], units = p[2], neighbours = p[3];
  double *out = (double *)p[4];
  if (!p[5]) memset(out, 0, 32 * units);
  for (int64_t i = 0; i < many * units * neighbours; ++i) {
    const double *part = (const double *)p[0] + 4 * i;
    double *unit = out + 4 * (i / neighbours % units);
    unit[0] += part[0];
    unit[1] += part[1];
    unit[2] = isnan(unit[2]) || isnan(part[2]) ? NAN : fmax(unit[2], part[2]);
    unit[3] += part[3];
  }
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                   unsigned shared, void *on, void **parameters, void **extra) {
  int64_t p[28];
  const int kernel = (int)(intptr_t)function - 1, given = kernel & EIGHT ? 28 : kernel & (MERGE | CLEAR) ? 6 : 8;
  const int name = kernel & ~(3 | PAIRED);
  if (status || name == failing) return status ? status : 700;
  if (y != 1 || z != 1 || threads != 128 || threads_y != 1 || threads_z != 1 || extra) return 1;
  for (int i = 0; i < given; ++i) p[i] = *(const int64_t *)parameters[i];
  history[launches++ % 64] = name;
  last_stream = on;
  if (kernel & CLEAR) {
    clear_counts(x, p);
  } else if (kernel & COUNT) {
    kernel & LIST ? count_list(kernel & 3, kernel & PAIRED, x, p) : count_one(kernel & 3, x, p);
  } else if (kernel & UNITS) {
    kernel & MERGE ? merge_parts(p) : kernel & LIST ? measure_runs(kernel & 3, x, p) : measure_columns(kernel & 3, x, p);
  } else if (kernel & COMPARE) {
    kernel & MERGE ? merge_products(x, p) : compare_list(kernel & 3, x, p);
  } else if (kernel & MERGE) {
    merge_rows(x, p);
  } else if (kernel & EIGHT) {
    measure_eight(kernel & 3, x, p);
  } else if (kernel & LIST) {
    measure_list(kernel & 3, kernel & PAIRED, x, p);
  } else {
    measure_one(kernel & 3, x, p);
  }
  return 0;
}

int nothing(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
            unsigned shared, void *on, void **parameters, void **extra) {
  ++launches;
  return 0;
}

int cuCtxGetCurrent(void **out) {
  *out = context;
  return 0;
}

int cuStreamIsCapturing(void *on, int *out) {
  *out = capturing;
  return 0;
}

int work_stream(int type, int32_t device, void **out) {
  *out = stream;
  return 0;
}
