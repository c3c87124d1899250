// Rotation of K rows: kernels agree bit for bit, pairs turn as defined, and a turn there and back is
// harmless.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/rope.hpp"
#include "tests/check.hpp"

using nexus::Half;
using nexus::RopeKernel;
using nexus::RopePairing;
using nexus::RopeShape;

namespace {

std::vector<Half> random_rows(std::size_t n, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<Half> rows(n);
    for (Half& number : rows) {
        number = nexus::to_half(normal(random));
    }
    return rows;
}

bool same_bits(const std::vector<Half>& left, const std::vector<Half>& right) {
    return left.size() == right.size() &&
           std::memcmp(left.data(), right.data(), left.size() * sizeof(Half)) == 0;
}

void test_a_pair_turns_by_position_times_frequency() {
    const std::vector<double> frequency = {0.5, 0.001};
    for (const RopePairing pairing : {RopePairing::kNorm, RopePairing::kNeox}) {
        // Head of five numbers, the last of which does not rotate.
        std::vector<Half> row(5, nexus::to_half(0.0F));
        row[0] = nexus::to_half(1.0F);
        row[4] = nexus::to_half(7.0F);
        const std::vector<std::int32_t> deltas = {3};
        nexus::rotate_keys(row.data(), RopeShape{1, 5, 4, pairing}, deltas, frequency, RopeKernel::kScalar);
        const std::size_t partner = pairing == RopePairing::kNorm ? 1 : 2;
        CHECK(std::fabs(nexus::to_float(row[0]) - std::cos(1.5F)) < 1e-3F);
        CHECK(std::fabs(nexus::to_float(row[partner]) - std::sin(1.5F)) < 1e-3F);
        CHECK(nexus::to_float(row[3]) == 0.0F);
        CHECK(nexus::to_float(row[4]) == 7.0F);
    }
}

void test_kernels_agree_bit_for_bit() {
    for (const std::size_t n_rot : {2U, 6U, 10U, 32U, 64U, 80U}) {
        const RopeShape base{3, n_rot + 16, n_rot, RopePairing::kNorm};
        const auto frequency = nexus::rope_frequencies(n_rot, 10000.0, 1.0, {});
        std::vector<std::int32_t> deltas = {0, 5, 5, -9, 2048, 131072, -1};
        for (const RopePairing pairing : {RopePairing::kNorm, RopePairing::kNeox}) {
            RopeShape shape = base;
            shape.pairing = pairing;
            const auto rows = random_rows(deltas.size() * shape.n_head * shape.head_dim, 7);
            auto reference = rows;
            nexus::rotate_keys(reference.data(), shape, deltas, frequency, RopeKernel::kScalar);
            for (const RopeKernel kernel : nexus::rope_kernels()) {
                auto turned = rows;
                nexus::rotate_keys(turned.data(), shape, deltas, frequency, kernel);
                CHECK(same_bits(turned, reference));
            }
        }
    }
}

void test_zero_keeps_bits_and_back_and_forth_keeps_norms() {
    const RopeShape shape{2, 64, 64, RopePairing::kNeox};
    const auto frequency = nexus::rope_frequencies(64, 10000.0, 1.0, {});
    const std::vector<std::int32_t> forth = {0, 1000};
    const std::vector<std::int32_t> back = {0, -1000};
    auto rows = random_rows(2 * 128, 11);
    rows[3] = Half{0x7E01};  // a NaN's payload would not survive arithmetic
    const auto before = rows;
    const RopeKernel kernel = nexus::rope_kernels().front();
    for (int round = 0; round < 8; ++round) {
        nexus::rotate_keys(rows.data(), shape, forth, frequency, kernel);
        nexus::rotate_keys(rows.data(), shape, back, frequency, kernel);
    }
    CHECK(std::memcmp(rows.data(), before.data(), 128 * sizeof(Half)) == 0);
    double norm_before = 0;
    double norm_after = 0;
    for (std::size_t i = 128; i < rows.size(); ++i) {
        norm_before += std::pow(static_cast<double>(nexus::to_float(before[i])), 2);
        norm_after += std::pow(static_cast<double>(nexus::to_float(rows[i])), 2);
    }
    CHECK(std::fabs(norm_after / norm_before - 1.0) < 1e-3);
}

void test_frequencies() {
    const auto plain = nexus::rope_frequencies(4, 10000.0, 0.5, {});
    CHECK(plain.size() == 2 && plain[0] == 0.5 && std::fabs(plain[1] - 0.005) < 1e-15);
    const std::vector<float> factors = {1.0F, 8.0F};
    CHECK(std::fabs(nexus::rope_frequencies(4, 10000.0, 1.0, factors)[1] - 0.01 / 8) < 1e-15);
    // YaRN keeps the fastest pairs as they are and scales the slowest in full.
    const auto mixed = nexus::rope_frequencies(128, 10000.0, 0.25, {}, {1.0, 4096.0, 32.0, 1.0});
    const auto unscaled = nexus::rope_frequencies(128, 10000.0, 1.0, {});
    CHECK(mixed.front() == unscaled.front());
    CHECK(std::fabs(mixed.back() / unscaled.back() - 0.25) < 1e-12);
}

void test_nonsense_is_refused() {
    using nexus::testing::throws;
    std::vector<Half> row(4);
    const std::vector<std::int32_t> deltas = {1};
    const std::vector<double> frequency = {1.0};
    const auto rotate = [&](std::size_t head_dim, std::size_t n_rot) {
        nexus::rotate_keys(row.data(), RopeShape{1, head_dim, n_rot, RopePairing::kNorm}, deltas, frequency,
                           RopeKernel::kScalar);
    };
    CHECK(throws<std::invalid_argument>([&] { rotate(4, 3); }));
    CHECK(throws<std::invalid_argument>([&] { rotate(4, 0); }));
    CHECK(throws<std::invalid_argument>([&] { rotate(4, 6); }));
    CHECK(throws<std::invalid_argument>([&] { rotate(4, 4); }));  // one frequency is missing
    CHECK(throws<std::invalid_argument>([] { nexus::rope_frequencies(4, 1.0, 1.0, {}); }));
    CHECK(throws<std::invalid_argument>([] { nexus::rope_frequencies(4, 1e4, std::nan(""), {}); }));
    CHECK(throws<std::invalid_argument>([] { nexus::rope_frequencies(5, 1e4, 1.0, {}); }));
    CHECK(throws<std::invalid_argument>([] {
        nexus::rope_frequencies(4, 1e4, 1.0, {}, {1.0, 0.0, 32.0, 1.0});
    }));
}

}  // namespace

int main() {
    test_a_pair_turns_by_position_times_frequency();
    test_kernels_agree_bit_for_bit();
    test_zero_keeps_bits_and_back_and_forth_keeps_norms();
    test_frequencies();
    test_nonsense_is_refused();
    return nexus::testing::finish();
}
