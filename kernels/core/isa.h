#pragma once
// Which instructions hand-written loops may use, asked once. GRADWIRE_CLONES (clones.h) is enough
// for loops that the compiler vectorises; where intrinsics are needed, a function has one form per
// level, marked GRADWIRE_AVX2 or GRADWIRE_AVX512, beside a plain one, and all give the same bits.

#include <algorithm>
#include <atomic>
#include <cstdint>

#if defined(__x86_64__) && !defined(__CUDACC__)
#include <cpuid.h>
#define GRADWIRE_X86 1
#define GRADWIRE_AVX2 __attribute__((target("avx2,f16c,bmi,bmi2,lzcnt,popcnt")))
#define GRADWIRE_AVX512 \
  __attribute__((target("avx2,f16c,bmi,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vl,avx512dq")))
#endif

namespace gradwire::cpu {

/// Each level holds all before it.
enum class Isa : uint8_t { kPlain, kAvx2, kAvx512 };

/// The highest level of this machine.
inline Isa best_isa() {
#ifdef GRADWIRE_X86
  static const Isa best = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    // Clang 14 does not know "f16c" by name.
    const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    if (!__builtin_cpu_supports("avx2") || !f16c || !__builtin_cpu_supports("bmi2")) {
      return Isa::kPlain;
    }
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return wide ? Isa::kAvx512 : Isa::kAvx2;
  }();
  return best;
#else
  return Isa::kPlain;
#endif
}

/// Makes this thread's stores past the caches visible before its later ones.
inline void finish_streaming() {
#ifdef GRADWIRE_X86
  __builtin_ia32_sfence();
#endif
}

namespace detail {
inline std::atomic<Isa> highest_isa{Isa::kAvx512};
}

/// The level to use now.
inline Isa isa() {
  return std::min(best_isa(), detail::highest_isa.load(std::memory_order_relaxed));
}

/// For tests: no higher level than `highest` is used while this lives.
class IsaLimit {
 public:
  explicit IsaLimit(Isa highest) : before_(detail::highest_isa.exchange(highest)) {}
  ~IsaLimit() { detail::highest_isa = before_; }
  IsaLimit(const IsaLimit&) = delete;
  IsaLimit& operator=(const IsaLimit&) = delete;

 private:
  const Isa before_;
};

}  // namespace gradwire::cpu
