#include "core/int8_matrix.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/top_k.hpp"

namespace nexus {
namespace {

constexpr std::size_t kBlockRows = 512;                       // dot products kept between scan and selection
constexpr std::size_t kPrefetchFrom = std::size_t{1} << 20U;  // smaller matrices stay in the caches
constexpr std::size_t kInsertionLimit = 64;                   // above it, sorting beats insertion
constexpr std::int32_t kNoRow = std::numeric_limits<std::int32_t>::min();

// The query in the forms that the kernels read, padded with zeros to whole chunks.
class PreparedQuery {
  public:
    PreparedQuery(std::span<const std::int8_t> query, std::size_t n_padded) {
        const std::size_t needed = 3 * n_padded + detail::kChunkBytes;
        if (store().size() < needed) {
            store().resize(needed);
        }
        void* start = store().data();
        std::size_t space = needed;
        std::align(detail::kChunkBytes, 3 * n_padded, start, space);
        plain_ = static_cast<std::int8_t*>(start);
        magnitude_ = static_cast<std::uint8_t*>(start) + n_padded;
        biased_ = magnitude_ + n_padded;
        std::memcpy(plain_, query.data(), query.size());
        std::memset(plain_ + query.size(), 0, n_padded - query.size());
        derive(plain_, magnitude_, biased_, n_padded);
    }

    void point(detail::ScanJob& job) const noexcept {
        job.query = plain_;
        job.magnitude = magnitude_;
        job.biased = biased_;
    }

  private:
    // Told that nothing overlaps, the compiler makes this a few vector instructions.
    static void derive(const std::int8_t* __restrict plain, std::uint8_t* __restrict magnitude,
                       std::uint8_t* __restrict biased, std::size_t n) noexcept {
        for (std::size_t i = 0; i < n; ++i) {
            const auto bits = static_cast<std::uint8_t>(plain[i]);
            const auto sign = static_cast<std::uint8_t>(plain[i] < 0 ? 0xFFU : 0U);
            magnitude[i] = static_cast<std::uint8_t>((bits ^ sign) - sign);
            biased[i] = static_cast<std::uint8_t>(bits ^ 0x80U);
        }
    }

    // One per thread and kept, so that a search allocates nothing.
    static std::vector<std::byte>& store() {
        thread_local std::vector<std::byte> bytes;
        return bytes;
    }

    std::int8_t* plain_ = nullptr;
    std::uint8_t* magnitude_ = nullptr;
    std::uint8_t* biased_ = nullptr;
};

void refuse_minus_128(std::span<const std::int8_t> numbers) {
    if (std::find(numbers.begin(), numbers.end(), std::numeric_limits<std::int8_t>::min()) != numbers.end()) {
        throw std::invalid_argument("rows must hold numbers in [-127, 127]; found -128");
    }
}

void fill(std::span<const detail::Hit> hits, TopKResult& result) {
    result.size = std::min(hits.size(), result.ids.size());
    for (std::size_t i = 0; i < result.size; ++i) {
        result.ids[i] = hits[i].id;
        result.dots[i] = hits[i].dot;
    }
    result.margin = hits.size() < 2 ? 0 : hits[0].dot - hits[1].dot;
}

// For many results: all candidates, partly sorted.
void select_sorted(std::span<const std::int32_t> dots, std::size_t k, TopKResult& result) {
    std::vector<detail::Hit> hits;
    hits.reserve(dots.size());
    for (std::size_t i = 0; i < dots.size(); ++i) {
        if (dots[i] != kNoRow) {
            hits.push_back({dots[i], static_cast<std::int64_t>(i)});
        }
    }
    k = std::min(k, hits.size());
    std::partial_sort(hits.begin(), hits.begin() + static_cast<std::ptrdiff_t>(k), hits.end(),
                      [](const detail::Hit& left, const detail::Hit& right) {
                          return left.dot != right.dot ? left.dot > right.dot : left.id < right.id;
                      });
    fill(std::span(hits).first(k), result);
}

// The margin needs the second best even when only the best is asked for.
std::size_t hits_needed(const TopKResult& result) { return std::max<std::size_t>(2, result.ids.size()); }

}  // namespace

Int8Matrix::Int8Matrix(std::size_t dim, ScanKernel kernel) : store_(dim), kernel_(kernel) {
    if (dim == 0 || dim > kMaxDim) {
        throw std::invalid_argument("dim must be between 1 and " + std::to_string(kMaxDim));
    }
}

std::size_t Int8Matrix::checked(std::size_t index) const {
    if (index >= size()) {
        throw std::out_of_range("row " + std::to_string(index) + " of " + std::to_string(size()));
    }
    return index;
}

void Int8Matrix::append(std::span<const std::int8_t> rows) {
    if (rows.size() % dim() != 0) {
        throw std::invalid_argument("rows must hold dim numbers each");
    }
    refuse_minus_128(rows);
    store_.append(rows.data(), rows.size() / dim());
}

void Int8Matrix::set_row(std::size_t index, std::span<const std::int8_t> row) {
    if (row.size() != dim()) {
        throw std::invalid_argument("a row must hold dim numbers");
    }
    refuse_minus_128(row);
    store_.set(checked(index), row.data());
}

void Int8Matrix::remove_row(std::size_t index) { store_.remove(checked(index)); }

void Int8Matrix::read_rows(std::span<std::int8_t> rows) const {
    if (rows.size() != size() * dim()) {
        throw std::invalid_argument("the output must hold all rows");
    }
    for (std::size_t i = 0; i < size(); ++i) {
        store_.read(i, rows.data() + i * dim());
    }
}

// Calls visit(dots, first row) for one block of rows after another.
template <typename Visit>
void Int8Matrix::scan(std::span<const std::int8_t> query, Visit visit) const {
    if (query.size() != dim()) {
        throw std::invalid_argument("the query must hold dim numbers");
    }
    alignas(detail::kChunkBytes) std::array<std::int32_t, kBlockRows> block;
    detail::ScanJob job{};
    const PreparedQuery prepared(query, store_.n_chunks() * detail::kChunkBytes);
    prepared.point(job);
    job.n_chunks = store_.n_chunks();
    job.dots = block.data();
    job.prefetch = store_.bytes() >= kPrefetchFrom;
    const detail::ScanTiles scan_tiles = detail::function_of(kernel_);
    for (std::size_t row = 0; row < size(); row += kBlockRows) {
        const std::size_t n_rows = std::min(kBlockRows, size() - row);
        const std::size_t tile = row / detail::kTileRows;
        job.tiles = store_.tiles() + tile * store_.tile_bytes();
        job.n_tiles = std::min(kBlockRows / detail::kTileRows, store_.n_tiles() - tile);
        job.row_sums = store_.row_sums() + row;
        scan_tiles(job);
        visit(std::span<const std::int32_t>(block.data(), n_rows), row);
    }
}

void Int8Matrix::dots(std::span<const std::int8_t> query, std::span<std::int32_t> out) const {
    if (out.size() != size()) {
        throw std::invalid_argument("the output must hold one number per row");
    }
    scan(query, [out](std::span<const std::int32_t> block, std::size_t row) {
        std::copy(block.begin(), block.end(), out.begin() + static_cast<std::ptrdiff_t>(row));
    });
}

void Int8Matrix::top_k(std::span<const std::int8_t> query, TopKResult& result) const {
    const std::size_t k = std::min(hits_needed(result), size());
    if (k > kInsertionLimit) {
        std::vector<std::int32_t> all(size());
        dots(query, all);
        select_sorted(all, k, result);
        return;
    }
    std::array<detail::Hit, kInsertionLimit> hits;
    detail::TopK best(std::span<detail::Hit>(hits).first(k));
    scan(query, [&best](std::span<const std::int32_t> block, std::size_t row) {
        best.offer(block, static_cast<std::int64_t>(row));
    });
    fill(std::span(hits).first(best.size()), result);
}

void Int8Matrix::top_k_pooled(std::span<const std::int8_t> query, std::span<const std::int32_t> groups,
                              std::size_t n_groups, TopKResult& result) const {
    if (groups.size() != size()) {
        throw std::invalid_argument("groups must hold one number per row");
    }
    const bool inside = std::all_of(groups.begin(), groups.end(), [n_groups](std::int32_t group) {
        return group >= 0 && static_cast<std::size_t>(group) < n_groups;
    });
    if (!inside) {
        throw std::invalid_argument("groups must lie in [0, n_groups)");
    }
    std::vector<std::int32_t> best(n_groups, kNoRow);
    scan(query, [&best, groups](std::span<const std::int32_t> block, std::size_t row) {
        for (std::size_t i = 0; i < block.size(); ++i) {
            std::int32_t& score = best[static_cast<std::size_t>(groups[row + i])];
            score = std::max(score, block[i]);
        }
    });
    select_sorted(best, hits_needed(result), result);
}

float quantize_row(std::span<const float> row, std::span<std::int8_t> out) {
    float largest = 0.0F;
    for (const float number : row) {
        if (!std::isfinite(number)) {
            throw std::invalid_argument("rows to quantize must be finite");
        }
        largest = std::max(largest, std::fabs(number));
    }
    if (largest == 0.0F) {
        std::fill(out.begin(), out.end(), std::int8_t{0});
        return 0.0F;
    }
    // In double, so that a subnormal maximum does not turn the quotient infinite.
    const double factor = 127.0 / static_cast<double>(largest);
    for (std::size_t i = 0; i < row.size(); ++i) {
        out[i] = static_cast<std::int8_t>(std::nearbyint(static_cast<double>(row[i]) * factor));
    }
    return largest / 127.0F;
}

}  // namespace nexus
