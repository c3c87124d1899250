// Compiled with the dot-product extension; entered only where cpu_features() has it.
#include <arm_neon.h>

#include "core/scan_tiles.hpp"

namespace nexus::detail {
namespace {

struct NeonDotProduct {
    using Acc = int32x4_t;
    using Query = int8x16_t;
    enum : size_t { kPart = 16 };

    static Acc zero() { return vdupq_n_s32(0); }
    static Query load(const ScanJob& job, size_t start) { return vld1q_s8(job.query + start); }
    static Acc add(Acc acc, const int8_t* row, Query query) { return vdotq_s32(acc, vld1q_s8(row), query); }
    static void store(const Acc* acc, const int32_t* /*row_sums*/, int32_t* dots) {
        for (size_t row = 0; row < kTileRows; ++row) {
            dots[row] = vaddvq_s32(acc[row]);
        }
    }
};

}  // namespace

void scan_tiles_neon_dotprod(const ScanJob& job) { scan_tiles<NeonDotProduct>(job); }

}  // namespace nexus::detail
