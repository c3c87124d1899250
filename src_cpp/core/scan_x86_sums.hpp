#pragma once

#include <immintrin.h>

namespace nexus::detail {
// Each file that includes this is compiled for another instruction set and must keep its own copy.
namespace {  // NOLINT(cert-dcl59-cpp)

// Sums of eight vectors of eight 32-bit numbers each, in order.
inline __m256i sum_each(const __m256i* eight) {
    const __m256i first =
        _mm256_hadd_epi32(_mm256_hadd_epi32(eight[0], eight[1]), _mm256_hadd_epi32(eight[2], eight[3]));
    const __m256i second =
        _mm256_hadd_epi32(_mm256_hadd_epi32(eight[4], eight[5]), _mm256_hadd_epi32(eight[6], eight[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(first, second, 0x20),
                            _mm256_permute2x128_si256(first, second, 0x31));
}

}  // namespace
}  // namespace nexus::detail
