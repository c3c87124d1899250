#pragma once

#include <bit>
#include <cstdint>

namespace nexus {

// IEEE 754 binary16, kept as its bits.
struct Half {
    std::uint16_t bits;
};

inline float to_float(Half value) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16U;
    const std::uint32_t exponent = (value.bits >> 10U) & 0x1FU;
    const std::uint32_t fraction = value.bits & 0x3FFU;
    if (exponent == 0x1FU) {  // infinity, or a NaN made quiet as the hardware does
        const std::uint32_t quiet = fraction != 0 ? 0x400000U : 0U;
        return std::bit_cast<float>(sign | 0x7F800000U | quiet | (fraction << 13U));
    }
    if (exponent == 0) {  // zero and subnormals: the value is fraction * 2^-24, exact in binary32
        const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (fraction << 13U));
}

// Rounds to nearest, ties to even, over the whole range: subnormals, overflow to infinity, quiet NaN.
inline Half to_half(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16U) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    std::uint32_t result = 0;
    if (magnitude > 0x7F800000U) {
        result = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);
    } else if (magnitude >= 0x477FF000U) {  // 65520 and above round past the largest finite value
        result = 0x7C00U;
    } else if (magnitude < 0x38800000U) {
        // Below 2^-14: adding 0.5 leaves the 10-bit subnormal fraction, rounded by the adder, in the low
        // bits.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
        result = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F);
    } else {
        const std::uint32_t odd = (magnitude >> 13U) & 1U;
        result = (magnitude - 0x38000000U + 0xFFFU + odd) >> 13U;
    }
    return Half{static_cast<std::uint16_t>(sign | result)};
}

}  // namespace nexus
