#include "core/rope_kernels.hpp"

#include <stdexcept>

#include "core/cpu.hpp"

#if defined(NEXUS_X86)
#include <immintrin.h>
#endif

// This file is compiled with -ffp-contract=off: a fused multiply-add in one kernel and not in the other would
// make their results differ in the last bit.

namespace nexus::detail {
namespace {

struct Pair {
    Half first;
    Half second;
};

Pair turn(Half first, Half second, float cosine, float sine) noexcept {
    const float x = to_float(first);
    const float y = to_float(second);
    return {to_half(x * cosine - y * sine), to_half(x * sine + y * cosine)};
}

void norm_from(std::size_t begin, Half* head, const RotationTable& table) noexcept {
    for (std::size_t i = begin; i < table.cosine.size(); ++i) {
        const Pair moved = turn(head[2 * i], head[2 * i + 1], table.cosine[i], table.sine[i]);
        head[2 * i] = moved.first;
        head[2 * i + 1] = moved.second;
    }
}

void neox_from(std::size_t begin, Half* head, const RotationTable& table) noexcept {
    const std::size_t half = table.cosine.size();
    for (std::size_t i = begin; i < half; ++i) {
        const Pair moved = turn(head[i], head[i + half], table.cosine[i], table.sine[i]);
        head[i] = moved.first;
        head[i + half] = moved.second;
    }
}

void norm_scalar(Half* head, const RotationTable& table) { norm_from(0, head, table); }
void neox_scalar(Half* head, const RotationTable& table) { neox_from(0, head, table); }

#if defined(NEXUS_X86)

#define NEXUS_F16C __attribute__((target("avx,f16c")))

NEXUS_F16C inline __m256 load_halves(const Half* source) noexcept {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
}

NEXUS_F16C inline void store_halves(Half* target, __m256 values) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Each of four numbers twice: a b c d -> a a b b c c d d.
NEXUS_F16C inline __m256 twice(const float* four) noexcept {
    const __m128 values = _mm_loadu_ps(four);
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_unpacklo_ps(values, values)),
                                _mm_unpackhi_ps(values, values), 1);
}

NEXUS_F16C void norm_f16c(Half* head, const RotationTable& table) {
    std::size_t i = 0;
    for (; i + 4 <= table.cosine.size(); i += 4) {
        const __m256 numbers = load_halves(head + 2 * i);
        const __m256 partners = _mm256_permute_ps(numbers, 0b10110001);
        const __m256 straight = _mm256_mul_ps(numbers, twice(table.cosine.data() + i));
        const __m256 crossed = _mm256_mul_ps(partners, twice(table.sine.data() + i));
        store_halves(head + 2 * i, _mm256_addsub_ps(straight, crossed));
    }
    norm_from(i, head, table);
}

NEXUS_F16C void neox_f16c(Half* head, const RotationTable& table) {
    const std::size_t half = table.cosine.size();
    std::size_t i = 0;
    for (; i + 8 <= half; i += 8) {
        const __m256 cosine = _mm256_loadu_ps(table.cosine.data() + i);
        const __m256 sine = _mm256_loadu_ps(table.sine.data() + i);
        const __m256 x = load_halves(head + i);
        const __m256 y = load_halves(head + half + i);
        store_halves(head + i, _mm256_sub_ps(_mm256_mul_ps(x, cosine), _mm256_mul_ps(y, sine)));
        store_halves(head + half + i, _mm256_add_ps(_mm256_mul_ps(x, sine), _mm256_mul_ps(y, cosine)));
    }
    neox_from(i, head, table);
}

#endif

}  // namespace

RotateHead select_rotation(RopeKernel kernel, RopePairing pairing) {
    const bool norm = pairing == RopePairing::kNorm;
    if (kernel == RopeKernel::kScalar) {
        return norm ? norm_scalar : neox_scalar;
    }
#if defined(NEXUS_X86)
    if (cpu_features().f16c) {
        return norm ? norm_f16c : neox_f16c;
    }
#endif
    throw std::invalid_argument("this processor has no f16c");
}

}  // namespace nexus::detail
