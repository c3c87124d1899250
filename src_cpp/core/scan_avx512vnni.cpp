// Compiled with AVX-512 F, BW, VL and VNNI; entered only where cpu_features() has them all.
#include "core/scan_tiles.hpp"
#include "core/scan_x86_sums.hpp"

namespace nexus::detail {
namespace {

// The instruction multiplies unsigned by signed bytes, so the query is biased by 128 and the row's sum, times
// 128, taken off at the end: (q + 128) . r - 128 sum(r) = q . r. Nothing saturates; a row costs one
// instruction per 64 numbers, its operand straight from memory.
struct Avx512Vnni {
    using Acc = __m512i;
    using Query = __m512i;
    enum : size_t { kPart = 64 };

    static Acc zero() { return _mm512_setzero_si512(); }
    static Query load(const ScanJob& job, size_t start) { return _mm512_load_si512(job.biased + start); }
    static Acc add(Acc acc, const int8_t* row, const Query& query) {
        return _mm512_dpbusd_epi32(acc, query, _mm512_load_si512(row));
    }
    static void store(const Acc* acc, const int32_t* row_sums, int32_t* dots) {
        __m256i halves[kTileRows];  // NOLINT(modernize-avoid-c-arrays): see scan_job.hpp
        for (size_t row = 0; row < kTileRows; ++row) {
            halves[row] =
                _mm256_add_epi32(_mm512_castsi512_si256(acc[row]), _mm512_extracti64x4_epi64(acc[row], 1));
        }
        const __m256i sums = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row_sums));
        const __m256i result = _mm256_sub_epi32(sum_each(halves), _mm256_slli_epi32(sums, 7));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(dots), result);
    }
};

}  // namespace

void scan_tiles_avx512vnni(const ScanJob& job) { scan_tiles<Avx512Vnni>(job); }

}  // namespace nexus::detail
