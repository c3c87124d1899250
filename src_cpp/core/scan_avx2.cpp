// Compiled with AVX2; entered only where cpu_features() has it.
#include "core/scan_tiles.hpp"
#include "core/scan_x86_sums.hpp"

namespace nexus::detail {
namespace {

// |q| * (r with q's sign) is q * r. With rows in [-127, 127] a pair of such products is at most
// 2 * 128 * 127 = 32512, so the 16-bit sums of maddubs never saturate and the result is exact.
struct Avx2 {
    using Acc = __m256i;
    struct Query {
        __m256i numbers, magnitude;
    };
    enum : size_t { kPart = 32 };

    static __m256i read(const void* at) { return _mm256_load_si256(static_cast<const __m256i*>(at)); }
    static Acc zero() { return _mm256_setzero_si256(); }
    static Query load(const ScanJob& job, size_t start) {
        return {read(job.query + start), read(job.magnitude + start)};
    }
    static Acc add(Acc acc, const int8_t* row, const Query& query) {
        const __m256i signed_row = _mm256_sign_epi8(read(row), query.numbers);
        const __m256i pairs = _mm256_maddubs_epi16(query.magnitude, signed_row);
        return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static void store(const Acc* acc, const int32_t* /*row_sums*/, int32_t* dots) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(dots), sum_each(acc));
    }
};

}  // namespace

void scan_tiles_avx2(const ScanJob& job) { scan_tiles<Avx2>(job); }

}  // namespace nexus::detail
