// Conversion between binary16 and binary32, against its definition and, where there is one, the hardware's.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/cpu.hpp"
#include "core/half.hpp"
#include "tests/check.hpp"

#if defined(NEXUS_X86)
#include <immintrin.h>
#endif

using nexus::Half;
using nexus::to_float;
using nexus::to_half;

namespace {

Half half(std::uint32_t bits) { return Half{static_cast<std::uint16_t>(bits)}; }

double by_definition(std::uint32_t bits) {
    const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>(bits >> 10U & 0x1FU);
    const double fraction = bits & 0x3FFU;
    if (exponent == 31) {
        return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    }
    return exponent == 0 ? sign * std::ldexp(fraction, -24)
                         : sign * std::ldexp(1024 + fraction, exponent - 25);
}

void test_every_half_widens_exactly_and_comes_back() {
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
        const float wide = to_float(half(bits));
        const double wanted = by_definition(bits);
        if (std::isnan(wanted)) {
            CHECK(std::isnan(wide) && std::isnan(to_float(to_half(wide))));
        } else {
            CHECK(static_cast<double>(wide) == wanted && std::signbit(wide) == ((bits & 0x8000U) != 0));
            CHECK(to_half(wide).bits == bits);
        }
    }
}

// Between two neighbours everything goes to the nearer one, and the middle to the even one.
void test_rounding_between_neighbours() {
    for (std::uint32_t bits = 0; bits < 0x7BFFU; ++bits) {
        const double low = by_definition(bits);
        const double high = by_definition(bits + 1);
        const auto middle = static_cast<float>((low + high) / 2);  // exact: one more bit than a half has
        CHECK(to_half(middle).bits == (bits % 2 == 0 ? bits : bits + 1));
        CHECK(to_half(std::nextafter(middle, 0.0F)).bits == bits);
        CHECK(to_half(std::nextafter(middle, 1e30F)).bits == bits + 1);
        CHECK(to_half(-middle).bits == (0x8000U | to_half(middle).bits));
    }
}

void test_the_ends_of_the_range() {
    CHECK(to_half(65504.0F).bits == 0x7BFFU);
    CHECK(to_half(std::nextafter(65520.0F, 0.0F)).bits == 0x7BFFU);
    CHECK(to_half(65520.0F).bits == 0x7C00U);
    CHECK(to_half(std::numeric_limits<float>::infinity()).bits == 0x7C00U);
    CHECK(to_half(-std::numeric_limits<float>::max()).bits == 0xFC00U);
    CHECK(to_half(0x1p-25F).bits == 0);  // half of the smallest subnormal: a tie, to even
    CHECK(to_half(std::nextafter(0x1p-25F, 1.0F)).bits == 1);
    CHECK(to_half(std::numeric_limits<float>::denorm_min()).bits == 0);
    CHECK(to_half(-0.0F).bits == 0x8000U);
}

#if defined(NEXUS_X86)
__attribute__((target("avx,f16c"))) std::uint16_t hardware_half(float value) {
    return static_cast<std::uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), 0), 0));
}

// Every 641st of all 2^32 bit patterns, NaN included: the vector kernel must not differ from the portable
// one.
void test_the_hardware_agrees() {
    if (!nexus::cpu_features().f16c) {
        return;
    }
    for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFULL; bits += 641) {
        const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        CHECK(to_half(value).bits == hardware_half(value));
    }
}
#else
void test_the_hardware_agrees() {}
#endif

}  // namespace

int main() {
    test_every_half_widens_exactly_and_comes_back();
    test_rounding_between_neighbours();
    test_the_ends_of_the_range();
    test_the_hardware_agrees();
    return nexus::testing::finish();
}
