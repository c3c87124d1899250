#include <arm_neon.h>

#include "core/scan_tiles.hpp"

namespace nexus::detail {
namespace {

// With rows in [-127, 127] two products fit 16 bits (2 * 128 * 127 = 32512), so each pair of widening
// multiplications may share an accumulator before it is added to the 32-bit sums.
struct Neon {
    using Acc = int32x4_t;
    using Query = int8x16_t;
    enum : size_t { kPart = 16 };

    static Acc zero() { return vdupq_n_s32(0); }
    static Query load(const ScanJob& job, size_t start) { return vld1q_s8(job.query + start); }
    static Acc add(Acc acc, const int8_t* row, Query query) {
        const int8x16_t numbers = vld1q_s8(row);
        const int16x8_t pairs = vmull_s8(vget_low_s8(numbers), vget_low_s8(query));
        return vpadalq_s16(acc, vmlal_high_s8(pairs, numbers, query));
    }
    static void store(const Acc* acc, const int32_t* /*row_sums*/, int32_t* dots) {
        for (size_t row = 0; row < kTileRows; ++row) {
            dots[row] = vaddvq_s32(acc[row]);
        }
    }
};

}  // namespace

void scan_tiles_neon(const ScanJob& job) { scan_tiles<Neon>(job); }

}  // namespace nexus::detail
