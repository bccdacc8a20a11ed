// The loops of lowrank_loops.h, once for each width of registers.

#include "gradwire/kernels/ops/internal/lowrank_loops.h"

#include "gradwire/kernels/core/isa.h"

namespace gradwire::cpu::internal {
namespace {

#define GRADWIRE_INLINE static inline __attribute__((always_inline))
#define GRADWIRE_INLINED __attribute__((always_inline))

// A register of floats, and the same of floats anywhere in memory, as a value which stays in its
// register: a copy of bytes would be made again at every use. kVectors: how many of them four rows
// are multiplied by at once, as many as there are registers for sums. kColumns: registers of a row
// at once, beside four rows or vectors.
struct Wide {
  using Vector = float __attribute__((vector_size(64)));
  using Loose = float __attribute__((vector_size(64), aligned(4), may_alias));
  static constexpr int kVectors = 4, kColumns = 2;
};
struct Middle {
  using Vector = float __attribute__((vector_size(32)));
  using Loose = float __attribute__((vector_size(32), aligned(4), may_alias));
  static constexpr int kVectors = 2, kColumns = 2;
};
struct Narrow {
  using Vector = float __attribute__((vector_size(16)));
  using Loose = float __attribute__((vector_size(16), aligned(4), may_alias));
  static constexpr int kVectors = 2, kColumns = 2;
};

template <class Form>
constexpr size_t kFloats = sizeof(typename Form::Vector) / sizeof(float);

template <class Form>
GRADWIRE_INLINE void load(const float* from, typename Form::Vector& v) {
  v = *reinterpret_cast<const typename Form::Loose*>(from);
}
template <class Form>
GRADWIRE_INLINE void store(const typename Form::Vector& v, float* to) {
  *reinterpret_cast<typename Form::Loose*>(to) = v;
}

#ifdef GRADWIRE_X86
template <class Body>
GRADWIRE_AVX512 void on_avx512(const Body& body) {
  body(Wide{});
}
template <class Body>
GRADWIRE_AVX2 void on_avx2(const Body& body) {
  body(Middle{});
}
#endif

/// body(form) with the widest form of this machine, inlined into a function compiled for it.
template <class Body>
void with_form(const Body& body) {
#ifdef GRADWIRE_X86
  if (isa() == Isa::kAvx512) {
    on_avx512(body);
    return;
  }
  if (isa() == Isa::kAvx2) {
    on_avx2(body);
    return;
  }
#endif
  body(Narrow{});
}

/// Rows of x, vectors q, and where their lanes are.
struct LaneSums {
  const float* x;
  size_t x_stride;
  const float* q;
  size_t stride, numel;
  float* lanes;
  size_t lanes_stride;  // from row to row
};

/// lanes[r][l] += x[j] * q[r][j] for j % 32 == l, in order: one row, two registers of lanes at a
/// time.
template <class Form, int kVectors>
GRADWIRE_INLINE void add_to_lanes(const LaneSums& s) {
  constexpr size_t kWide = kFloats<Form>;
  using Vector = typename Form::Vector;
  const size_t whole = s.numel / kLanes * kLanes;
  for (size_t lane = 0; lane < kLanes; lane += 2 * kWide) {
    Vector sums[kVectors][2];
    for (int r = 0; r < kVectors; ++r) {
      load<Form>(s.lanes + r * kLanes + lane, sums[r][0]);
      load<Form>(s.lanes + r * kLanes + lane + kWide, sums[r][1]);
    }
    for (size_t j = lane; j < whole; j += kLanes) {
      Vector x0, x1;
      load<Form>(s.x + j, x0);
      load<Form>(s.x + j + kWide, x1);
      for (int r = 0; r < kVectors; ++r) {
        Vector q0, q1;
        load<Form>(s.q + r * s.stride + j, q0);
        load<Form>(s.q + r * s.stride + j + kWide, q1);
        sums[r][0] += x0 * q0;
        sums[r][1] += x1 * q1;
      }
    }
    for (int r = 0; r < kVectors; ++r) {
      store<Form>(sums[r][0], s.lanes + r * kLanes + lane);
      store<Form>(sums[r][1], s.lanes + r * kLanes + lane + kWide);
    }
  }
  for (int r = 0; r < kVectors; ++r) {
    for (size_t l = whole; l < s.numel; ++l) {
      s.lanes[r * kLanes + l - whole] += s.x[l] * s.q[r * s.stride + l];
    }
  }
}

/// The same for four rows, of the lanes of one register from `lane` on.
template <class Form, int kVectors>
GRADWIRE_INLINE void add_to_some_lanes(const LaneSums& s, size_t lane) {
  typename Form::Vector sums[4][kVectors];
  for (size_t i = 0; i < 4; ++i) {
    for (size_t r = 0; r < kVectors; ++r) {
      load<Form>(s.lanes + lane + i * s.lanes_stride + r * kLanes, sums[i][r]);
    }
  }
  for (size_t j = lane; j - lane + kLanes <= s.numel; j += kLanes) {
    typename Form::Vector q[kVectors];
    for (size_t r = 0; r < kVectors; ++r) {
      load<Form>(s.q + r * s.stride + j, q[r]);
    }
    for (size_t i = 0; i < 4; ++i) {
      typename Form::Vector v;
      load<Form>(s.x + i * s.x_stride + j, v);
      for (size_t r = 0; r < kVectors; ++r) {
        sums[i][r] += v * q[r];
      }
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    for (size_t r = 0; r < kVectors; ++r) {
      store<Form>(sums[i][r], s.lanes + lane + i * s.lanes_stride + r * kLanes);
    }
  }
}

template <class Form, int kVectors>
GRADWIRE_INLINE void add_four_rows(const LaneSums& s) {
  for (size_t lane = 0; lane < kLanes; lane += kFloats<Form>) {
    add_to_some_lanes<Form, kVectors>(s, lane);
  }
  for (size_t l = s.numel / kLanes * kLanes; l < s.numel; ++l) {
    for (size_t i = 0; i < 4; ++i) {
      for (size_t r = 0; r < kVectors; ++r) {
        s.lanes[i * s.lanes_stride + r * kLanes + l % kLanes] +=
            s.x[i * s.x_stride + l] * s.q[r * s.stride + l];
      }
    }
  }
}

template <class Form>
GRADWIRE_INLINE void add_row(LaneSums s, uint32_t vectors) {
  uint32_t r = 0;
  for (; r + 4 <= vectors; r += 4) {
    add_to_lanes<Form, 4>(s);
    s.q += 4 * s.stride;
    s.lanes += 4 * kLanes;
  }
  for (; r < vectors; ++r) {
    add_to_lanes<Form, 1>(s);
    s.q += s.stride;
    s.lanes += kLanes;
  }
}

template <class Form, int kVectors, int kColumns>
GRADWIRE_INLINE void add_columns(const ColumnSums& c) {
  constexpr size_t kWide = kFloats<Form>;
  using Vector = typename Form::Vector;
  size_t j = 0;
  for (; j + kColumns * kWide <= c.numel; j += kColumns * kWide) {
    Vector total[kVectors][kColumns];
    for (int r = 0; r < kVectors; ++r) {
      for (int k = 0; k < kColumns; ++k) {
        load<Form>(c.sums + r * c.cols + j + k * kWide, total[r][k]);
      }
    }
    for (uint32_t i = 0; i < c.count; ++i) {
      Vector v[kColumns];
      for (int k = 0; k < kColumns; ++k) {
        load<Form>(c.x + i * c.x_stride + j + k * kWide, v[k]);
      }
      for (int r = 0; r < kVectors; ++r) {
        for (int k = 0; k < kColumns; ++k) {
          total[r][k] += v[k] * c.p[r * c.rows + i];
        }
      }
    }
    for (int r = 0; r < kVectors; ++r) {
      for (int k = 0; k < kColumns; ++k) {
        store<Form>(total[r][k], c.sums + r * c.cols + j + k * kWide);
      }
    }
  }
  for (; j < c.numel; ++j) {
    for (int r = 0; r < kVectors; ++r) {
      float total = c.sums[r * c.cols + j];
      for (uint32_t i = 0; i < c.count; ++i) {
        total += c.x[i * c.x_stride + j] * c.p[r * c.rows + i];
      }
      c.sums[r * c.cols + j] = total;
    }
  }
}

template <class Form, int kRows, int kColumns>
GRADWIRE_INLINE void combine_some(const float* l, const float* q, size_t stride, uint32_t vectors,
                                  float* out, size_t out_stride, size_t numel) {
  constexpr size_t kWide = kFloats<Form>;
  using Vector = typename Form::Vector;
  size_t j = 0;
  for (; j + kColumns * kWide <= numel; j += kColumns * kWide) {
    Vector sums[kRows][kColumns], v[kColumns];
    for (int k = 0; k < kColumns; ++k) {
      load<Form>(q + j + k * kWide, v[k]);
    }
    for (int i = 0; i < kRows; ++i) {
      for (int k = 0; k < kColumns; ++k) {
        sums[i][k] = l[i * vectors] * v[k];
      }
    }
    for (uint32_t r = 1; r < vectors; ++r) {
      for (int k = 0; k < kColumns; ++k) {
        load<Form>(q + r * stride + j + k * kWide, v[k]);
      }
      for (int i = 0; i < kRows; ++i) {
        for (int k = 0; k < kColumns; ++k) {
          sums[i][k] += l[i * vectors + r] * v[k];
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int k = 0; k < kColumns; ++k) {
        store<Form>(sums[i][k], out + i * out_stride + j + k * kWide);
      }
    }
  }
  for (; j < numel; ++j) {
    for (int i = 0; i < kRows; ++i) {
      float sum = l[i * vectors] * q[j];
      for (uint32_t r = 1; r < vectors; ++r) {
        sum += l[i * vectors + r] * q[r * stride + j];
      }
      out[i * out_stride + j] = sum;
    }
  }
}

}  // namespace

void accumulate(const float* x, const float* q, size_t stride, size_t numel, uint32_t vectors,
                float* lanes) {
  with_form([&]<class Form>(Form)
                GRADWIRE_INLINED { add_row<Form>({x, 0, q, stride, numel, lanes, 0}, vectors); });
}

void accumulate_rows(const float* x, size_t x_stride, uint32_t rows, const float* q, size_t stride,
                     size_t numel, uint32_t vectors, float* lanes) {
  with_form([&]<class Form>(Form) GRADWIRE_INLINED {
    const size_t lanes_stride = vectors * kLanes;
    uint32_t r = 0;
    const auto from = [&](uint32_t v) GRADWIRE_INLINED {
      return LaneSums{x, x_stride, q + v * stride, stride, numel, lanes + v * kLanes, lanes_stride};
    };
    for (; rows == 4 && r + Form::kVectors <= vectors; r += Form::kVectors) {
      add_four_rows<Form, Form::kVectors>(from(r));
    }
    for (; rows == 4 && r + 2 <= vectors; r += 2) {
      add_four_rows<Form, 2>(from(r));
    }
    for (uint32_t i = 0; i < rows && r < vectors; ++i) {
      add_row<Form>({x + i * x_stride, 0, q + r * stride, stride, numel,
                     lanes + i * lanes_stride + r * kLanes, 0},
                    vectors - r);
    }
  });
}

void sum_lanes(const float* lanes, uint32_t count, float* sums) {
  using Vector = Narrow::Vector;
  for (uint32_t i = 0; i < count; ++i) {
    Vector v[8];
    for (size_t k = 0; k < 8; ++k) {
      load<Narrow>(lanes + i * kLanes + 4 * k, v[k]);
    }
    for (size_t half = 4; half > 0; half /= 2) {
      for (size_t k = 0; k < half; ++k) {
        v[k] += v[k + half];
      }
    }
    sums[i] = (v[0][0] + v[0][2]) + (v[0][1] + v[0][3]);
  }
}

void accumulate_columns(ColumnSums c, uint32_t vectors) {
  with_form([&]<class Form>(Form) GRADWIRE_INLINED {
    uint32_t r = 0;
    for (; r + 4 <= vectors; r += 4) {
      add_columns<Form, 4, Form::kColumns>(c);
      c.p += 4 * c.rows;
      c.sums += 4 * c.cols;
    }
    for (; r < vectors; ++r) {
      add_columns<Form, 1, 4 * Form::kColumns>(c);
      c.p += c.rows;
      c.sums += c.cols;
    }
  });
}

void combine(const float* l, const float* q, size_t stride, uint32_t vectors, float* out,
             size_t numel) {
  with_form([&]<class Form>(Form) GRADWIRE_INLINED {
    combine_some<Form, 1, 2>(l, q, stride, vectors, out, 0, numel);
  });
}

void combine_rows(const float* l, uint32_t rows, const float* q, size_t stride, uint32_t vectors,
                  float* out, size_t out_stride, size_t numel) {
  with_form([&]<class Form>(Form) GRADWIRE_INLINED {
    uint32_t i = 0;
    for (; i + 4 <= rows; i += 4) {
      combine_some<Form, 4, Form::kColumns>(l + i * vectors, q, stride, vectors,
                                            out + i * out_stride, out_stride, numel);
    }
    for (; i < rows; ++i) {
      combine_some<Form, 1, Form::kColumns>(l + i * vectors, q, stride, vectors,
                                            out + i * out_stride, out_stride, numel);
    }
  });
}

}  // namespace gradwire::cpu::internal
