// Every scan kernel of this processor against a plain 64-bit sum, and the AVX-512-VNNI arithmetic on any
// processor, with its instruction written out in portable code.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/int8_matrix.hpp"
#include "core/scan_tiles.hpp"
#include "core/tile_store.hpp"
#include "tests/check.hpp"

using nexus::Int8Matrix;
using nexus::ScanKernel;
using nexus::TopKResult;
using nexus::testing::throws;
using Numbers = std::vector<std::int8_t>;

namespace {

enum class Fill { kRandom, kLargest, kAlternating };

Numbers numbers(std::size_t n, Fill fill, std::uint32_t seed, bool query) {
    std::mt19937 random(seed);
    const int low = query ? -128 : -127;  // a query may hold what a row may not
    Numbers result(n);
    for (std::size_t i = 0; i < n; ++i) {
        const int random_number = low + static_cast<int>(random() % static_cast<unsigned>(128 - low));
        const int largest = query ? low : 127;
        const int number = fill == Fill::kRandom    ? random_number
                           : fill == Fill::kLargest ? largest
                                                    : (i % 2 == 0 ? 127 : -127);
        result[i] = static_cast<std::int8_t>(number);
    }
    return result;
}

std::vector<std::int32_t> reference_dots(const Numbers& rows, const Numbers& query) {
    std::vector<std::int32_t> dots;
    for (std::size_t start = 0; start < rows.size(); start += query.size()) {
        std::int64_t sum = 0;
        for (std::size_t i = 0; i < query.size(); ++i) {
            sum += std::int64_t{rows[start + i]} * query[i];
        }
        dots.push_back(static_cast<std::int32_t>(sum));
    }
    return dots;
}

struct Found {
    std::vector<std::int64_t> ids;
    std::vector<std::int32_t> dots;
    std::int32_t margin;
    bool operator==(const Found&) const = default;
};

template <typename Search>
Found search(std::size_t k, Search call) {
    std::vector<std::int64_t> ids(k);
    std::vector<std::int32_t> dots(k);
    TopKResult result{ids, dots};
    call(result);
    ids.resize(result.size);
    dots.resize(result.size);
    return {ids, dots, result.margin};
}

Found reference_top_k(const std::vector<std::int32_t>& dots, std::size_t k) {
    std::vector<std::int64_t> ids(dots.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&dots](std::int64_t left, std::int64_t right) {
        return dots[static_cast<std::size_t>(left)] > dots[static_cast<std::size_t>(right)];
    });
    Found found{{}, {}, 0};
    for (std::size_t i = 0; i < std::min(k, ids.size()); ++i) {
        found.ids.push_back(ids[i]);
        found.dots.push_back(dots[static_cast<std::size_t>(ids[i])]);
    }
    if (ids.size() > 1) {
        found.margin = dots[static_cast<std::size_t>(ids[0])] - dots[static_cast<std::size_t>(ids[1])];
    }
    return found;
}

void test_kernels_are_exact() {
    for (const ScanKernel kernel : nexus::scan_kernels()) {
        for (const std::size_t dim : {1U, 3U, 63U, 64U, 65U, 127U, 384U, 768U}) {
            for (const std::size_t n : {1U, 7U, 8U, 9U, 40U, 513U}) {
                for (const Fill fill : {Fill::kRandom, Fill::kLargest, Fill::kAlternating}) {
                    const Numbers rows = numbers(n * dim, fill, static_cast<std::uint32_t>(n + dim), false);
                    const Numbers query = numbers(dim, fill, 99, true);
                    Int8Matrix matrix(dim, kernel);
                    matrix.append(rows);
                    std::vector<std::int32_t> dots(n);
                    matrix.dots(query, dots);
                    const auto wanted = reference_dots(rows, query);
                    CHECK(dots == wanted);
                    for (const std::size_t k : {0U, 1U, 3U, 64U, 65U, 600U}) {
                        const auto found =
                            search(std::min(k, n), [&](TopKResult& r) { matrix.top_k(query, r); });
                        CHECK(found == reference_top_k(wanted, k));
                    }
                }
            }
        }
    }
}

void test_large_matrices_take_the_prefetching_loop() {
    for (const ScanKernel kernel : nexus::scan_kernels()) {
        constexpr std::size_t kDim = 384;
        constexpr std::size_t kRows = 3001;
        Int8Matrix matrix(kDim, kernel);
        const Numbers rows = numbers(kRows * kDim, Fill::kRandom, 4, false);
        const Numbers query = numbers(kDim, Fill::kRandom, 5, true);
        matrix.append(rows);
        const auto found = search(5, [&](TopKResult& r) { matrix.top_k(query, r); });
        CHECK(found == reference_top_k(reference_dots(rows, query), 5));
    }
}

void test_ties_go_to_the_lower_row() {
    Int8Matrix matrix(4, nexus::scan_kernels().front());
    matrix.append(Numbers(4 * 1000, 1));
    const auto found = search(3, [&](TopKResult& r) { matrix.top_k(Numbers(4, 2), r); });
    CHECK((found == Found{{0, 1, 2}, {8, 8, 8}, 0}));
}

void test_rows_change() {
    std::mt19937 random(8);
    constexpr std::size_t kDim = 70;
    Int8Matrix matrix(kDim, nexus::scan_kernels().front());
    std::vector<Numbers> model;
    const Numbers query = numbers(kDim, Fill::kRandom, 1, true);
    for (std::uint32_t round = 0; round < 400; ++round) {
        const Numbers row = numbers(kDim, Fill::kRandom, 1000 + round, false);
        const std::size_t index = model.empty() ? 0 : random() % model.size();
        if (model.empty() || random() % 2 == 0) {
            matrix.append(row);
            model.push_back(row);
        } else if (random() % 2 == 0) {
            matrix.set_row(index, row);
            model[index] = row;
        } else {
            matrix.remove_row(index);
            model.erase(model.begin() + static_cast<std::ptrdiff_t>(index));
        }
        Numbers all;
        for (const Numbers& each : model) {
            all.insert(all.end(), each.begin(), each.end());
        }
        Numbers read(all.size());
        matrix.read_rows(read);
        CHECK(read == all);
        std::vector<std::int32_t> dots(model.size());
        matrix.dots(query, dots);
        CHECK(dots == reference_dots(all, query));
    }
}

void test_pooling() {
    Int8Matrix matrix(2, nexus::scan_kernels().front());
    const Numbers rows = {1, 0, 5, 0, 3, 0, 4, 0};
    matrix.append(rows);
    const std::vector<std::int32_t> groups = {2, 0, 2, 3};  // group 1 has no rows
    const Numbers query = {10, 0};
    const auto pooled = [&](std::size_t n_groups) {
        return search(4, [&](TopKResult& r) { matrix.top_k_pooled(query, groups, n_groups, r); });
    };
    CHECK((pooled(4) == Found{{0, 3, 2}, {50, 40, 30}, 10}));
    CHECK(throws<std::invalid_argument>([&] { pooled(3); }));
}

void test_misuse_is_refused() {
    const ScanKernel kernel = nexus::scan_kernels().front();
    CHECK(throws<std::invalid_argument>([&] { Int8Matrix(0, kernel); }));
    CHECK(throws<std::invalid_argument>([&] { Int8Matrix(Int8Matrix::kMaxDim + 1, kernel); }));
    CHECK(throws<std::invalid_argument>([] { nexus::scan_kernel_named("sse9"); }));
    Int8Matrix matrix(4, kernel);
    CHECK(throws<std::invalid_argument>([&] { matrix.append(Numbers(4, -128)); }));
    CHECK(throws<std::invalid_argument>([&] { matrix.append(Numbers(5, 1)); }));
    CHECK(throws<std::out_of_range>([&] { matrix.remove_row(0); }));
    CHECK(throws<std::invalid_argument>(
        [&] { search(1, [&](TopKResult& r) { matrix.top_k(Numbers(3, 1), r); }); }));
    const auto empty = search(1, [&](TopKResult& r) { matrix.top_k(Numbers(4, 1), r); });
    CHECK(empty.ids.empty() && empty.margin == 0);
}

void test_the_widest_row_does_not_overflow() {
    for (const ScanKernel kernel : nexus::scan_kernels()) {
        Int8Matrix matrix(Int8Matrix::kMaxDim, kernel);
        matrix.append(Numbers(Int8Matrix::kMaxDim, 127));
        std::vector<std::int32_t> dots(1);
        matrix.dots(Numbers(Int8Matrix::kMaxDim, -128), dots);
        CHECK(dots[0] == -128 * 127 * static_cast<std::int32_t>(Int8Matrix::kMaxDim));
    }
}

void test_searching_threads() {
    constexpr std::size_t kDim = 128;
    Int8Matrix matrix(kDim, nexus::scan_kernels().front());
    const Numbers rows = numbers(300 * kDim, Fill::kRandom, 21, false);
    matrix.append(rows);
    std::vector<std::thread> threads;
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
        threads.emplace_back([&, seed] {
            const Numbers query = numbers(kDim, Fill::kRandom, seed, true);
            const Found wanted = reference_top_k(reference_dots(rows, query), 3);
            for (int round = 0; round < 50; ++round) {
                CHECK(search(3, [&](TopKResult& r) { matrix.top_k(query, r); }) == wanted);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

void test_quantization() {
    Numbers codes(4);
    const std::vector<float> row = {0.5F, -1.0F, 0.25F, 0.0F};
    CHECK(nexus::quantize_row(row, codes) == 1.0F / 127.0F);
    CHECK((codes == Numbers{64, -127, 32, 0}));  // 63.5 rounds to even
    CHECK(nexus::quantize_row(std::vector<float>(4, 0.0F), codes) == 0.0F && codes == Numbers(4, 0));
    const std::vector<float> tiny(4, std::numeric_limits<float>::denorm_min());
    nexus::quantize_row(tiny, codes);
    CHECK(codes == Numbers(4, 127));
    const std::vector<float> infinite(4, std::numeric_limits<float>::infinity());
    CHECK(throws<std::invalid_argument>([&] { nexus::quantize_row(infinite, codes); }));
}

// vpdpbusd as its manual defines it: each 32-bit lane adds four products of unsigned by signed bytes, without
// saturation. With this in place of the instruction, the loop, the bias and its correction are those of the
// real kernel; what stays for a processor that has it is the choice of intrinsics.
struct EmulatedVnni {
    struct Acc {
        std::int32_t lane[16];
    };
    using Query = const std::uint8_t*;
    static constexpr std::size_t kPart = 64;

    static Acc zero() { return {}; }
    static Query load(const nexus::detail::ScanJob& job, std::size_t start) { return job.biased + start; }
    static Acc add(Acc acc, const std::int8_t* row, Query query) {
        for (std::size_t lane = 0; lane < 16; ++lane) {
            for (std::size_t i = 4 * lane; i < 4 * lane + 4; ++i) {
                acc.lane[lane] += std::int32_t{query[i]} * std::int32_t{row[i]};
            }
        }
        return acc;
    }
    static void store(const Acc* acc, const std::int32_t* row_sums, std::int32_t* dots) {
        for (std::size_t row = 0; row < nexus::detail::kTileRows; ++row) {
            dots[row] = std::accumulate(acc[row].lane, acc[row].lane + 16, 0) - row_sums[row] * 128;
        }
    }
};

void test_vnni_arithmetic() {
    constexpr std::size_t kDim = 200;
    constexpr std::size_t kPadded = 256;
    for (const Fill fill : {Fill::kRandom, Fill::kLargest, Fill::kAlternating}) {
        for (const std::size_t n : {1U, 8U, 21U}) {
            const Numbers rows = numbers(n * kDim, fill, 31, false);
            const Numbers query = numbers(kDim, fill, 32, true);
            nexus::detail::TileStore store(kDim);
            store.append(rows.data(), n);
            std::vector<std::uint8_t> biased(kPadded, 128);
            for (std::size_t i = 0; i < kDim; ++i) {
                biased[i] = static_cast<std::uint8_t>(query[i] + 128);
            }
            std::vector<std::int32_t> dots(store.n_tiles() * nexus::detail::kTileRows);
            nexus::detail::ScanJob job{};
            job.tiles = store.tiles();
            job.n_tiles = store.n_tiles();
            job.n_chunks = store.n_chunks();
            job.biased = biased.data();
            job.row_sums = store.row_sums();
            job.dots = dots.data();
            nexus::detail::scan_tiles<EmulatedVnni>(job);
            dots.resize(n);
            CHECK(dots == reference_dots(rows, query));
        }
    }
}

}  // namespace

int main() {
    for (const ScanKernel kernel : nexus::scan_kernels()) {
        std::printf("kernel %s\n", std::string(nexus::name_of(kernel)).c_str());
    }
    test_kernels_are_exact();
    test_large_matrices_take_the_prefetching_loop();
    test_ties_go_to_the_lower_row();
    test_rows_change();
    test_pooling();
    test_misuse_is_refused();
    test_the_widest_row_does_not_overflow();
    test_searching_threads();
    test_quantization();
    test_vnni_arithmetic();
    return nexus::testing::finish();
}
