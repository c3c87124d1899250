#include "core/scan_tiles.hpp"

namespace nexus::detail {
namespace {

struct Scalar {
    using Acc = int32_t;
    using Query = const int8_t*;
    enum : size_t { kPart = kChunkBytes };

    static Acc zero() { return 0; }
    static Query load(const ScanJob& job, size_t start) { return job.query + start; }
    static Acc add(Acc acc, const int8_t* row, Query query) {
        for (size_t i = 0; i < kPart; ++i) {
            acc += int32_t{row[i]} * int32_t{query[i]};
        }
        return acc;
    }
    static void store(const Acc* acc, const int32_t* /*row_sums*/, int32_t* dots) {
        for (size_t row = 0; row < kTileRows; ++row) {
            dots[row] = acc[row];
        }
    }
};

}  // namespace

void scan_tiles_scalar(const ScanJob& job) { scan_tiles<Scalar>(job); }

}  // namespace nexus::detail
