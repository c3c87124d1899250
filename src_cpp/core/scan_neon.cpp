#include <arm_neon.h>

#include "core/scan_tiles.hpp"

namespace nexus::detail {
namespace {

// With rows in [-127, 127] two products fit 16 bits (2 * 128 * 127 = 32512), so each pair of widening
// multiplications may share an accumulator before it is added to the 32-bit sums.
struct Neon {
    using Acc = int32x4_t;
    struct Query {
        int8x16_t part[4];
    };

    static Acc zero() { return vdupq_n_s32(0); }
    static Query load(const ScanJob& job, size_t chunk) {
        const int8_t* query = job.query + chunk * kChunkBytes;
        return {{vld1q_s8(query), vld1q_s8(query + 16), vld1q_s8(query + 32), vld1q_s8(query + 48)}};
    }
    static Acc add(Acc acc, const int8_t* row, const Query& query) {
        for (size_t i = 0; i < 4; ++i) {
            const int8x16_t numbers = vld1q_s8(row + 16 * i);
            int16x8_t pairs = vmull_s8(vget_low_s8(numbers), vget_low_s8(query.part[i]));
            pairs = vmlal_high_s8(pairs, numbers, query.part[i]);
            acc = vpadalq_s16(acc, pairs);
        }
        return acc;
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
